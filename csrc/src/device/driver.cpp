// cuTensorMapEncodeTiled without a link to libcuda.
//
// CUTLASS builds tensor maps with this driver function. Left to itself it looks the function up by
// name on every call, three times a launch; told to call it directly
// (CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL) it would need libcuda at link time. So the library
// defines the function itself, hidden by the version script, and forwards to the driver's, looked
// up once.
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, or null where there is no driver.
Encode look_up() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;  // CUDA 12.0 introduced it
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Encode>(found);
}

}  // namespace

extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
    cuuint32_t const* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static Encode const encode = look_up();
  if (encode == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  return encode(map, type, rank, address, extents, strides, box, element_strides, interleave,
                swizzle, promotion, fill);
}
