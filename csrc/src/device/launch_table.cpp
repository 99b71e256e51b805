// Which launcher runs which (configuration, dtype, activation), and the few CUDA calls besides.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "cutlass/version.h"
#include "device/launcher.hpp"
#include "host/config.hpp"
#include "launch.hpp"

#define SWIGLU_STRING2(x) #x
#define SWIGLU_STRING(x) SWIGLU_STRING2(x)

namespace swiglu {
namespace device {

#define SWIGLU_DECLARE(name) Error name(Problem const&, DeviceInfo const&, cudaStream_t);
#define SWIGLU_DECLARE_ALL_TYPES(config)                                    \
  SWIGLU_DECLARE(config##_bf16_silu)                                        \
  SWIGLU_DECLARE(config##_bf16_gelu) SWIGLU_DECLARE(config##_bf16_relu)     \
      SWIGLU_DECLARE(config##_fp16_silu) SWIGLU_DECLARE(config##_fp16_gelu) \
          SWIGLU_DECLARE(config##_fp16_relu)

SWIGLU_DECLARE_ALL_TYPES(pp_128x192_c2x1)
SWIGLU_DECLARE(pp_128x192_c1x1_bf16_silu)
SWIGLU_DECLARE(pp_128x160_c2x1_bf16_silu)
SWIGLU_DECLARE(pp_64x256_c1x1_bf16_silu)
SWIGLU_DECLARE(co_128x256_c2x1_bf16_silu)
SWIGLU_DECLARE(co_256x128_c1x2_bf16_silu)
SWIGLU_DECLARE(co_256x192_c2x1_bf16_silu)
SWIGLU_DECLARE(co_256x192_c1x2_bf16_silu)
SWIGLU_DECLARE(pp_128x192_c2x1_g1_bf16_silu)
SWIGLU_DECLARE(pp_128x192_c2x1_phys_bf16_silu)
SWIGLU_DECLARE(k1_128x128_c2x1_bf16_silu)
SWIGLU_DECLARE(k1_128x128_c1x2_bf16_silu)
SWIGLU_DECLARE(k1_64x256_c2x1_bf16_silu)
SWIGLU_DECLARE(k1_128x128_c2x1_hold_bf16_silu)

// Of a configuration of small_m_list.hpp, whose name has to be made first.
#define SWIGLU_DECLARE_ALL(name) SWIGLU_DECLARE_ALL_TYPES(name)
#define SWIGLU_DECLARE_BF16_SILU(name) SWIGLU_DECLARE(name##_bf16_silu)
#define SWIGLU_DECLARE_ONE(name) SWIGLU_DECLARE_BF16_SILU(name)
#define SWIGLU_DECLARE_SMALL_M_ALL(...) SWIGLU_DECLARE_ALL(SWIGLU_SMALL_M_NAME(__VA_ARGS__))
#define SWIGLU_DECLARE_SMALL_M_ONE(...) SWIGLU_DECLARE_ONE(SWIGLU_SMALL_M_NAME(__VA_ARGS__))
SWIGLU_SMALL_M_ALL_TYPES(SWIGLU_DECLARE_SMALL_M_ALL)
SWIGLU_SMALL_M_BF16_SILU(SWIGLU_DECLARE_SMALL_M_ONE)

namespace {

// [dtype][activation] of one configuration; null where it is not compiled.
using LaunchRow = std::array<std::array<LaunchFunction, 3>, 2>;

#define SWIGLU_ALL_TYPES(config)                                      \
  LaunchRow {                                                         \
    {                                                                 \
      {config##_bf16_silu, config##_bf16_gelu, config##_bf16_relu}, { \
        config##_fp16_silu, config##_fp16_gelu, config##_fp16_relu    \
      }                                                               \
    }                                                                 \
  }

constexpr LaunchRow only_bf16_silu(LaunchFunction launch) {
  return {{{launch, nullptr, nullptr}, {}}};
}

#define SWIGLU_ROW_OF_ALL(name) SWIGLU_ALL_TYPES(name)
#define SWIGLU_ROW_OF_BF16_SILU(name) only_bf16_silu(name##_bf16_silu)
#define SWIGLU_ROW_OF_ONE(name) SWIGLU_ROW_OF_BF16_SILU(name)
#define SWIGLU_SMALL_M_ALL_ROW(...) SWIGLU_ROW_OF_ALL(SWIGLU_SMALL_M_NAME(__VA_ARGS__)),
#define SWIGLU_SMALL_M_ONE_ROW(...) SWIGLU_ROW_OF_ONE(SWIGLU_SMALL_M_NAME(__VA_ARGS__)),

// In the order of ConfigId.
constexpr std::array<LaunchRow, kNumConfigs> kLaunchers = {
    SWIGLU_ALL_TYPES(pp_128x192_c2x1),
    only_bf16_silu(pp_128x192_c1x1_bf16_silu),
    only_bf16_silu(pp_128x160_c2x1_bf16_silu),
    only_bf16_silu(pp_64x256_c1x1_bf16_silu),
    only_bf16_silu(co_128x256_c2x1_bf16_silu),
    only_bf16_silu(co_256x128_c1x2_bf16_silu),
    only_bf16_silu(co_256x192_c2x1_bf16_silu),
    only_bf16_silu(co_256x192_c1x2_bf16_silu),
    only_bf16_silu(pp_128x192_c2x1_g1_bf16_silu),
    only_bf16_silu(pp_128x192_c2x1_phys_bf16_silu),
    only_bf16_silu(k1_128x128_c2x1_bf16_silu),
    only_bf16_silu(k1_128x128_c1x2_bf16_silu),
    only_bf16_silu(k1_64x256_c2x1_bf16_silu),
    only_bf16_silu(k1_128x128_c2x1_hold_bf16_silu),
    SWIGLU_SMALL_M_ALL_TYPES(SWIGLU_SMALL_M_ALL_ROW)
    SWIGLU_SMALL_M_BF16_SILU(SWIGLU_SMALL_M_ONE_ROW)
};

// Multiprocessors of `device`, 0 where it is not sm_90; asked once per device.
Error num_sms_of(int device, int* num_sms) {
  static std::array<std::atomic<int>, kMaxDevices> known{};
  *num_sms = known[device].load(std::memory_order_relaxed);
  if (*num_sms > 0) {
    return {};
  }
  int major = 0;
  int minor = 0;
  for (auto [attribute, value] : {std::pair{cudaDevAttrComputeCapabilityMajor, &major},
                                  std::pair{cudaDevAttrComputeCapabilityMinor, &minor},
                                  std::pair{cudaDevAttrMultiProcessorCount, num_sms}}) {
    if (cudaError_t status = cudaDeviceGetAttribute(value, attribute, device)) {
      return cuda_error("cudaDeviceGetAttribute", status);
    }
  }
  if (major != 9 || minor != 0) {
    return {SWIGLU_UNSUPPORTED_DEVICE, "device: must have compute capability 9.0, has " +
                                           std::to_string(major) + "." + std::to_string(minor)};
  }
  known[device].store(*num_sms, std::memory_order_relaxed);
  return {};
}

}  // namespace

Error current_device(int* device) {
  if (cudaError_t status = cudaGetDevice(device)) {
    return cuda_error("cudaGetDevice", status);
  }
  if (*device >= kMaxDevices) {
    return {SWIGLU_UNSUPPORTED_DEVICE, "device: must be below " + std::to_string(kMaxDevices) +
                                           ", is " + std::to_string(*device)};
  }
  return {};
}

}  // namespace device

Error launch_on_device(Problem const& problem, void* stream) {
  auto const launch = device::kLaunchers[problem.config][problem.dtype][problem.activation];
  if (launch == nullptr) {
    return {SWIGLU_INTERNAL,
            std::string("the launch table lacks ") + config_at(problem.config).name};
  }
  int device = 0;
  if (Error error = device::current_device(&device)) return error;
  return launch(problem, {device, problem.num_sms}, static_cast<cudaStream_t>(stream));
}

Error fill_zero_on_device(void* out, int64_t row_stride, int64_t m, int64_t n, void* stream) {
  constexpr int64_t kBytes = 2;
  return device::cuda_error("cudaMemset2DAsync",
                            cudaMemset2DAsync(out, row_stride * kBytes, 0, n * kBytes, m,
                                              static_cast<cudaStream_t>(stream)));
}

Error query_num_sms(int* num_sms) {
  int device = 0;
  if (Error error = device::current_device(&device)) return error;
  return device::num_sms_of(device, num_sms);
}

char const* device_build_info() {
  return "cutlass=" SWIGLU_STRING(CUTLASS_MAJOR) "." SWIGLU_STRING(CUTLASS_MINOR) "." SWIGLU_STRING(
      CUTLASS_PATCH) " cudart=" SWIGLU_STRING(CUDART_VERSION);
}

}  // namespace swiglu
