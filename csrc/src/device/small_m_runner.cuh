// From validated arguments to a launched small-M kernel, generic over the kernel instance.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "cutlass/device_kernel.h"
#include "device/launcher.hpp"
#include "device/small_m_kernel.cuh"
#include "host/down_problem.hpp"
#include "host/problem.hpp"

namespace swiglu::device {

// Raises the kernel's shared memory limit, once per device.
template <class Kernel>
Error prepare_small_m(int device) {
  static std::array<std::atomic<bool>, kMaxDevices> known{};
  if (known[device].load(std::memory_order_acquire)) {
    return {};
  }
  void const* entry = reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>);
  if (cudaError_t status = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                Kernel::SharedStorageSize)) {
    return cuda_error("cudaFuncSetAttribute", status);
  }
  known[device].store(true, std::memory_order_release);
  return {};
}

// The tensor map of a matrix of 2-byte elements, in boxes whose rows are one row of the swizzle;
// what lies outside the matrix is read as zeros.
template <class Element>
Error encode_map(CUtensorMap* map, void const* address, MatrixView const& view) {
  std::array<cuuint64_t, 4> extents{};
  std::array<cuuint64_t, 3> strides{};
  std::array<cuuint32_t, 4> box{};
  std::array<cuuint32_t, 4> const every{1, 1, 1, 1};
  for (uint32_t i = 0; i < view.rank; ++i) {
    extents[i] = static_cast<cuuint64_t>(view.extents[i]);
    box[i] = static_cast<cuuint32_t>(view.box[i]);
    if (i + 1 < view.rank) {
      strides[i] = static_cast<cuuint64_t>(view.strides[i]) * sizeof(Element);
    }
  }
  CUresult const status = cuTensorMapEncodeTiled(
      map, cute::TMA::to_CUtensorMapDataType<Element>(), view.rank, const_cast<void*>(address),
      extents.data(), strides.data(), box.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    return {SWIGLU_INTERNAL,
            "the driver refused a tensor map; shapes and strides were valid, so this is our bug"};
  }
  return {};
}

template <class Kernel>
Error launch_grid(typename Kernel::Params& params, int64_t clusters, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {{}, cluster_attribute(dim3(Kernel::kClusterSize, 1, 1))};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * Kernel::kClusterSize));
  config.blockDim = dim3(Kernel::MaxThreadsPerBlock);
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = Kernel::kClusterSize == 1 ? 1 : 2;
  void* kernel_args[] = {&params};
  return cuda_error(
      "cudaLaunchKernelExC",
      cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(&cutlass::device_kernel<Kernel>),
                          kernel_args));
}

// Args: Problem or DownProblem, whose weights are at `weight`.
template <class Kernel, class Args>
Error launch_small_m(Args const& args, void const* weight, int64_t weight_row_stride,
                     DeviceInfo const& device, cudaStream_t stream) {
  using Element = typename Kernel::Element;
  using Output = typename Kernel::Output;
  if (Error error = prepare_small_m<Kernel>(device.ordinal)) return error;
  int64_t const rows = args.n * Output::kRowsPerChunk / 8;
  typename Kernel::Params params{};
  params.out = static_cast<Element*>(args.out);
  params.out_row_stride = args.out_row_stride;
  params.m = static_cast<int>(args.m);
  params.n = static_cast<int>(args.n);
  params.k = static_cast<int>(args.k);
  params.token_tiles = static_cast<int>((args.m + Kernel::kTokens - 1) / Kernel::kTokens);
  params.weights_are_constant = args.weights_are_constant;
  MatrixView const weights = Output::weights(args.n, args.k, weight_row_stride, Kernel::kRows);
  if (Error error = encode_map<Element>(&params.weights, weight, weights)) return error;
  MatrixView const tokens = plain_view(args.m, args.k, args.x_row_stride, Kernel::kTokenBox);
  if (Error error = encode_map<Element>(&params.tokens, args.x, tokens)) return error;
  constexpr int64_t kClusterRows = Kernel::kRows * Kernel::kSharers;
  int64_t const row_groups = (rows + kClusterRows - 1) / kClusterRows;
  return launch_grid<Kernel>(params, row_groups * params.token_tiles, stream);
}

template <class Config, class Element, class Activation>
Error launch_small_m_gate_up(Problem const& problem, DeviceInfo const& device,
                             cudaStream_t stream) {
  return launch_small_m<SmallMKernel<Config, Element, PairMul<Activation>>>(
      problem, problem.gate_up, problem.gate_up_row_stride, device, stream);
}

template <class Config, class Element>
Error launch_small_m_down(DownProblem const& problem, DeviceInfo const& device,
                          cudaStream_t stream) {
  return launch_small_m<SmallMKernel<Config, Element, Plain>>(
      problem, problem.weight, problem.weight_row_stride, device, stream);
}

}  // namespace swiglu::device

// Define the launcher of a configuration of host/small_m_list.hpp for one type.
#define SWIGLU_JOIN3_(a, b, c) a##b##c
#define SWIGLU_JOIN3(a, b, c) SWIGLU_JOIN3_(a, b, c)
#define SWIGLU_SMALL_M_LAUNCHER(type, element, activation, tokens, rows, tile_k, stages, splits,  \
                                sharers, turn)                                                    \
  Error SWIGLU_JOIN3(SWIGLU_SMALL_M_NAME(tokens, rows, tile_k, stages, splits, sharers, turn), _, \
                     type)(Problem const& problem, DeviceInfo const& device,                      \
                           cudaStream_t stream) {                                                 \
    using Config = SmallMConfig<tokens, rows / 64, tile_k, stages, splits, sharers, turn>;        \
    return launch_small_m_gate_up<Config, element, activation>(problem, device, stream);          \
  }
#define SWIGLU_DOWN_LAUNCHER(type, element, tokens, rows, tile_k, stages, splits, sharers, turn) \
  Error SWIGLU_JOIN3(                                                                            \
      down_, SWIGLU_SMALL_M_NAME(tokens, rows, tile_k, stages, splits, sharers, turn), _##type)( \
      DownProblem const& problem, DeviceInfo const& device, cudaStream_t stream) {               \
    using Config = SmallMConfig<tokens, rows / 64, tile_k, stages, splits, sharers, turn>;       \
    return launch_small_m_down<Config, element>(problem, device, stream);                        \
  }
