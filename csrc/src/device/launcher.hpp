// What the files of instances/ define and launch_table.cu collects: one function per kernel
// instance, element type and activation.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "host/error.hpp"
#include "host/problem.hpp"

namespace swiglu::device {

inline constexpr int kMaxDevices = 64;

struct DeviceInfo {
  int ordinal;
  int num_sms;  // how many the kernel may use
};

using LaunchFunction = Error (*)(Problem const&, DeviceInfo const&, cudaStream_t);

// The calling thread's device; refuses one beyond kMaxDevices.
Error current_device(int* device);

inline Error cuda_error(char const* call, cudaError_t status) {
  if (status == cudaSuccess) {
    return {};
  }
  return {SWIGLU_CUDA_ERROR, std::string(call) + ": " + cudaGetErrorString(status)};
}

inline cudaLaunchAttribute cluster_attribute(dim3 cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = 1;
  return attribute;
}

}  // namespace swiglu::device

// Defines launcher `name` for a PairGemm type, which may hold commas.
#define SWIGLU_LAUNCHER(name, ...)                                                    \
  Error name(Problem const& problem, DeviceInfo const& device, cudaStream_t stream) { \
    return launch_gemm<__VA_ARGS__>(problem, device, stream);                         \
  }
