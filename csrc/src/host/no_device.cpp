// Stands in for src/device in builds without CUDA: validation, selection and errors work, launches
// are refused.
#include "launch.hpp"

namespace swiglu {
namespace {

Error no_device() {
  return {SWIGLU_UNSUPPORTED_DEVICE,
          "library: must be built with CUDA to launch kernels, is the host-only build"};
}

}  // namespace

Error launch_on_device(Problem const&, void*) { return no_device(); }
Error launch_down_on_device(DownProblem const&, void*) { return no_device(); }
Error fill_zero_on_device(void*, int64_t, int64_t, int64_t, void*) { return no_device(); }
Error query_num_sms(int*) { return no_device(); }
char const* device_build_info() { return "cuda=none"; }

}  // namespace swiglu
