// The exported functions of swiglu.h for the down projection.
#include "guarded.hpp"
#include "host/checks.hpp"
#include "host/down_config.hpp"
#include "host/down_problem.hpp"
#include "host/select_down.hpp"
#include "launch.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {
namespace {

Error launch_down(swiglu_down_args_t const* args, void* stream) {
  DownProblem problem;
  if (Error error = validate_down_problem(args, &problem)) return error;
  if (problem.m == 0) return {};
  int num_sms = 0;
  if (Error error = query_num_sms(&num_sms)) return error;
  if (problem.k == 0) {
    return fill_zero_on_device(problem.out, problem.out_row_stride, problem.m, problem.n, stream);
  }
  if (problem.config == SWIGLU_CONFIG_AUTO) {
    problem.config = select_down_config(problem.m, problem.n, problem.k, problem.dtype, num_sms);
    if (Error error = check_grid(down_config_at(problem.config), problem.m, problem.n))
      return error;
  }
  return launch_down_on_device(problem, stream);
}

}  // namespace
}  // namespace swiglu

extern "C" {

int32_t swiglu_down_config_count(void) { return swiglu::kNumDownConfigs; }

swiglu_status_t swiglu_down_get_config(int32_t index, swiglu_config_t* config) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_index(index, swiglu::kNumDownConfigs, config))
      return error;
    *config = swiglu::down_config_at(index);
    return {};
  });
}

swiglu_status_t swiglu_down_select(int64_t m, int64_t n, int64_t k, int32_t dtype, int32_t num_sms,
                                   int32_t* choice) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_query(m, n, k, num_sms, choice)) return error;
    *choice = swiglu::select_down_config(m, n, k, static_cast<swiglu_dtype_t>(dtype), num_sms);
    return {};
  });
}

swiglu_status_t swiglu_down_validate(swiglu_down_args_t const* args) {
  return swiglu::guarded([&]() -> swiglu::Error {
    swiglu::DownProblem problem;
    return swiglu::validate_down_problem(args, &problem);
  });
}

swiglu_status_t swiglu_down_launch(swiglu_down_args_t const* args, void* stream) {
  return swiglu::guarded([&]() -> swiglu::Error { return swiglu::launch_down(args, stream); });
}

}  // extern "C"
