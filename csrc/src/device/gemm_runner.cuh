// From a validated Problem to a launched kernel: the one place that talks to the CUDA runtime about
// launches, generic over the kernel instance.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "cutlass/device_kernel.h"
#include "cutlass/kernel_hardware_info.h"
#include "device/launcher.hpp"
#include "device/pair_gemm.cuh"

namespace swiglu::device {

// Raises the kernel's shared memory limit and finds how many clusters fit on the device at once;
// once per device, since both calls cost microseconds and the answers do not change.
template <class Kernel>
Error prepare_kernel(int device, dim3 cluster, int* max_clusters) {
  static std::array<std::atomic<int>, kMaxDevices> known{};
  *max_clusters = known[device].load(std::memory_order_acquire);
  if (*max_clusters > 0) {
    return {};
  }
  void const* entry = reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>);
  if (cudaError_t status = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                Kernel::SharedStorageSize)) {
    return cuda_error("cudaFuncSetAttribute", status);
  }
  cudaLaunchAttribute attribute = cluster_attribute(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (cudaError_t status = cudaOccupancyMaxActiveClusters(max_clusters, entry, &config)) {
    return cuda_error("cudaOccupancyMaxActiveClusters", status);
  }
  if (*max_clusters < 1) {
    return {SWIGLU_UNSUPPORTED_DEVICE, "device: must hold a cluster of " +
                                           std::to_string(cluster.x * cluster.y) +
                                           " CTAs, holds none"};
  }
  known[device].store(*max_clusters, std::memory_order_release);
  return {};
}

// CUTLASS reports a tensor map that could not be encoded on stderr only and goes on with zeros.
template <class Tma>
bool is_encoded(Tma const& tma) {
  static constexpr char kZeros[sizeof(cute::TmaDescriptor)] = {};
  return std::memcmp(tma.get_tma_descriptor(), kZeros, sizeof(kZeros)) != 0;
}

template <class Kernel>
typename Kernel::TileSchedulerArguments scheduler_arguments(Problem const& problem) {
  using Options = typename Kernel::TileScheduler::RasterOrderOptions;
  typename Kernel::TileSchedulerArguments arguments{};
  arguments.max_swizzle_size = problem.swizzle;
  arguments.raster_order =
      problem.raster == SWIGLU_RASTER_ALONG_M ? Options::AlongM : Options::AlongN;
  return arguments;
}

template <class Gemm>
typename Gemm::Kernel::Arguments kernel_arguments(Problem const& problem,
                                                  cutlass::KernelHardwareInfo const& hw_info) {
  using Element = typename Gemm::Element;
  using Kernel = typename Gemm::Kernel;
  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {static_cast<int>(problem.m), static_cast<int>(2 * problem.n),
                             static_cast<int>(problem.k), 1};
  arguments.mainloop = {static_cast<Element const*>(problem.x), problem.x_row_stride,
                        static_cast<Element const*>(problem.gate_up), problem.gate_up_row_stride,
                        problem.weights_are_constant};
  arguments.epilogue = Gemm::epilogue_arguments(problem);
  arguments.hw_info = hw_info;
  arguments.scheduler = scheduler_arguments<Kernel>(problem);
  return arguments;
}

template <class Gemm>
Error launch_gemm(Problem const& problem, DeviceInfo const& device, cudaStream_t stream) {
  using Kernel = typename Gemm::Kernel;
  using Cluster = typename Gemm::ClusterShape;
  static_assert(alignof(typename Kernel::Params) >= 64, "tensor maps must lie on 64 bytes");
  dim3 const cluster(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1);

  int max_clusters = 0;
  if (Error error = prepare_kernel<Kernel>(device.ordinal, cluster, &max_clusters)) {
    return error;
  }
  cutlass::KernelHardwareInfo const hw_info{device.ordinal, device.num_sms, max_clusters};
  auto params = Kernel::to_underlying_arguments(kernel_arguments<Gemm>(problem, hw_info), nullptr);
  if (!is_encoded(params.mainloop.tma_x) || !is_encoded(params.mainloop.tma_gate_up) ||
      !is_encoded(Gemm::out_map(params))) {
    return {SWIGLU_INTERNAL,
            "the driver refused a tensor map; shapes and strides were valid, so this is our bug"};
  }

  cudaLaunchAttribute attributes[2] = {cluster_attribute(cluster), {}};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      Kernel::TileScheduler::grid_shape(params.scheduler, max_clusters, device.num_sms);
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  void* kernel_args[] = {&params};
  return cuda_error(
      "cudaLaunchKernelExC",
      cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>),
                          kernel_args));
}

}  // namespace swiglu::device
