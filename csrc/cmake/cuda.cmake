# The kernels: CUDA language, CUTLASS headers, the checked compiler, one object per instance file.

# Named by hand below: plain "90" would lack WGMMA, and older CMake does not know "90a".
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8 OR CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 14)
  message(FATAL_ERROR "nvcc: must be 12.8 to 13.x, is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(third_party ${CMAKE_CURRENT_SOURCE_DIR}/../third_party)
execute_process(COMMAND ${Python3_EXECUTABLE} ${third_party}/fetch_cutlass.py COMMAND_ERROR_IS_FATAL ANY)

set(checked_compiler ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/nvcc_checked.py)
if(SWIGLU_CHECK_SASS)
  # In the toolkit, or in PyPI packages of the Python that runs the build; cuobjdump calls nvdisasm.
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(GLOB pip_cuobjdump ${site_packages}/nvidia/*/bin)
  get_filename_component(nvcc_folder ${CMAKE_CUDA_COMPILER} DIRECTORY)
  find_program(SWIGLU_CUOBJDUMP cuobjdump HINTS ${nvcc_folder} ${pip_cuobjdump} /usr/local/cuda/bin)
  get_filename_component(cuobjdump_folder "${SWIGLU_CUOBJDUMP}" DIRECTORY)
  find_program(SWIGLU_NVDISASM nvdisasm HINTS ${cuobjdump_folder})
  if(NOT SWIGLU_CUOBJDUMP OR NOT SWIGLU_NVDISASM)
    message(FATAL_ERROR "cuobjdump and nvdisasm not found: pip install nvidia-cuda-cuobjdump "
                        "nvidia-cuda-nvdisasm, name the first with -DSWIGLU_CUOBJDUMP=, or build "
                        "with -DSWIGLU_CHECK_SASS=OFF")
  endif()
  list(APPEND checked_compiler --cuobjdump ${SWIGLU_CUOBJDUMP})
endif()

file(GLOB instances CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/device/instances/*.cu)
add_library(swiglu_kernels OBJECT ${instances})
set_target_properties(swiglu_kernels PROPERTIES CUDA_COMPILER_LAUNCHER "${checked_compiler}")
set_property(GLOBAL PROPERTY JOB_POOLS nvcc=${SWIGLU_CUDA_JOBS})
set_property(TARGET swiglu_kernels PROPERTY JOB_POOL_COMPILE nvcc)
target_compile_definitions(swiglu_kernels PRIVATE NDEBUG CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL
  # WGMMAs 160 columns wide.
  CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED)
target_compile_options(swiglu_kernels PRIVATE
  -gencode=arch=compute_90a,code=sm_90a -O3 --expt-relaxed-constexpr -Xptxas=-v)
set(cutlass_includes ${third_party}/cutlass/include ${third_party}/cutlass/tools/util/include)
target_include_directories(swiglu_kernels PRIVATE src include)
target_include_directories(swiglu_kernels SYSTEM PRIVATE ${cutlass_includes})

add_library(swiglu SHARED ${host_sources} src/device/copies.cpp src/device/driver.cpp
  src/device/down_table.cpp src/device/ipc.cpp src/device/launch_table.cpp $<TARGET_OBJECTS:swiglu_kernels>)
target_include_directories(swiglu SYSTEM PRIVATE ${cutlass_includes} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
# Static: one file for every Python and torch, and no link to libcuda (src/device/driver.cpp).
set_target_properties(swiglu PROPERTIES CUDA_RUNTIME_LIBRARY Static LINKER_LANGUAGE CUDA)
