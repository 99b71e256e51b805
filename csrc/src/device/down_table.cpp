// Which launcher runs which (configuration, dtype) of the down projection.
#include <array>
#include <string>

#include "device/launcher.hpp"
#include "host/down_config.hpp"
#include "host/down_problem.hpp"
#include "launch.hpp"

namespace swiglu {
namespace device {

#define SWIGLU_DECLARE(name) Error name(DownProblem const&, DeviceInfo const&, cudaStream_t);
#define SWIGLU_DECLARE_BF16(name) SWIGLU_DECLARE(down_##name##_bf16)
#define SWIGLU_DECLARE_FP16(name) SWIGLU_DECLARE(down_##name##_fp16)
// A macro more, since the name has to be made before it is joined to others.
#define SWIGLU_BF16_OF(name) SWIGLU_DECLARE_BF16(name)
#define SWIGLU_FP16_OF(name) SWIGLU_DECLARE_FP16(name)
#define SWIGLU_BF16(...) SWIGLU_BF16_OF(SWIGLU_SMALL_M_NAME(__VA_ARGS__))
#define SWIGLU_FP16(...) SWIGLU_FP16_OF(SWIGLU_SMALL_M_NAME(__VA_ARGS__))
SWIGLU_DOWN(SWIGLU_BF16)
SWIGLU_DOWN_ALL_TYPES(SWIGLU_FP16)

namespace {

using LaunchDown = Error (*)(DownProblem const&, DeviceInfo const&, cudaStream_t);
// [dtype] of one configuration; null where it is not compiled.
using LaunchRow = std::array<LaunchDown, 2>;

#define SWIGLU_ROW_OF_BOTH(name) \
  LaunchRow { down_##name##_bf16, down_##name##_fp16 }
#define SWIGLU_ROW_OF_BF16(name) \
  LaunchRow { down_##name##_bf16, nullptr }
#define SWIGLU_BOTH_OF(name) SWIGLU_ROW_OF_BOTH(name)
#define SWIGLU_ONE_OF(name) SWIGLU_ROW_OF_BF16(name)
#define SWIGLU_BOTH_ROW(...) SWIGLU_BOTH_OF(SWIGLU_SMALL_M_NAME(__VA_ARGS__)),
#define SWIGLU_ONE_ROW(...) SWIGLU_ONE_OF(SWIGLU_SMALL_M_NAME(__VA_ARGS__)),

// In the order of DownConfigId.
constexpr std::array<LaunchRow, kNumDownConfigs> kLaunchers = {
    SWIGLU_DOWN_ALL_TYPES(SWIGLU_BOTH_ROW) SWIGLU_DOWN_BF16(SWIGLU_ONE_ROW)};

}  // namespace
}  // namespace device

Error launch_down_on_device(DownProblem const& problem, void* stream) {
  auto const launch = device::kLaunchers[problem.config][problem.dtype];
  if (launch == nullptr) {
    return {SWIGLU_INTERNAL,
            std::string("the launch table lacks ") + down_config_at(problem.config).name};
  }
  int device = 0;
  if (Error error = device::current_device(&device)) return error;
  return launch(problem, {device, 0}, static_cast<cudaStream_t>(stream));
}

}  // namespace swiglu
