// The exported functions of swiglu.h: validate, choose, hand to the device; exceptions end here.
#include <string>

#include "guarded.hpp"
#include "host/config.hpp"
#include "host/problem.hpp"
#include "host/select_config.hpp"
#include "launch.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

std::string& last_error() {
  static thread_local std::string sentence;
  return sentence;
}

namespace {

void complete(Problem* problem) {
  if (problem->config == SWIGLU_CONFIG_AUTO) {
    problem->config = select_config(problem->m, problem->n, problem->k, problem->dtype,
                                    problem->activation, problem->num_sms)
                          .config;
  }
  if (problem->raster == SWIGLU_RASTER_AUTO) {
    problem->raster = select_raster(problem->m, problem->n, problem->k);
  }
  if (problem->swizzle == 0) {
    problem->swizzle = select_swizzle(problem->m, problem->n, problem->k);
  }
}

Error launch(swiglu_args_t const* args, void* stream) {
  Problem problem;
  if (Error error = validate_problem(args, &problem)) return error;
  if (problem.m == 0) return {};
  int num_sms = 0;
  if (Error error = query_num_sms(&num_sms)) return error;
  if (problem.num_sms == 0 || problem.num_sms > num_sms) {
    problem.num_sms = num_sms;
  }
  if (problem.k == 0) {
    return fill_zero_on_device(problem.out, problem.out_row_stride, problem.m, problem.n, stream);
  }
  complete(&problem);
  return launch_on_device(problem, stream);
}

}  // namespace
}  // namespace swiglu

extern "C" {

uint32_t swiglu_abi_version(void) { return SWIGLU_ABI_VERSION; }

char const* swiglu_build_info(void) { return swiglu::device_build_info(); }

char const* swiglu_last_error(void) { return swiglu::last_error().c_str(); }

char const* swiglu_status_name(swiglu_status_t status) {
  switch (status) {
    case SWIGLU_OK:
      return "SWIGLU_OK";
    case SWIGLU_INVALID_ARGUMENT:
      return "SWIGLU_INVALID_ARGUMENT";
    case SWIGLU_INVALID_SHAPE:
      return "SWIGLU_INVALID_SHAPE";
    case SWIGLU_MISALIGNED:
      return "SWIGLU_MISALIGNED";
    case SWIGLU_NOT_COMPILED:
      return "SWIGLU_NOT_COMPILED";
    case SWIGLU_UNSUPPORTED_DEVICE:
      return "SWIGLU_UNSUPPORTED_DEVICE";
    case SWIGLU_WORKSPACE_TOO_SMALL:
      return "SWIGLU_WORKSPACE_TOO_SMALL";
    case SWIGLU_CUDA_ERROR:
      return "SWIGLU_CUDA_ERROR";
    case SWIGLU_INTERNAL:
      return "SWIGLU_INTERNAL";
  }
  return "unknown status";
}

int32_t swiglu_config_count(void) { return swiglu::kNumConfigs; }

swiglu_status_t swiglu_get_config(int32_t index, swiglu_config_t* config) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_index(index, swiglu::kNumConfigs, config)) return error;
    *config = swiglu::config_at(index);
    return {};
  });
}

swiglu_status_t swiglu_select(int64_t m, int64_t n, int64_t k, int32_t dtype, int32_t activation,
                              int32_t num_sms, swiglu_choice_t* choice) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (swiglu::Error error = swiglu::check_query(m, n, k, num_sms, choice)) return error;
    *choice = swiglu::select_config(m, n, k, static_cast<swiglu_dtype_t>(dtype),
                                    static_cast<swiglu_activation_t>(activation), num_sms);
    return {};
  });
}

swiglu_status_t swiglu_validate(swiglu_args_t const* args) {
  return swiglu::guarded([&]() -> swiglu::Error {
    swiglu::Problem problem;
    return swiglu::validate_problem(args, &problem);
  });
}

swiglu_status_t swiglu_workspace_size(swiglu_args_t const* args, size_t* bytes) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (bytes == nullptr) return swiglu::null_argument("bytes");
    swiglu::Problem problem;
    if (swiglu::Error error = swiglu::validate_problem(args, &problem)) return error;
    *bytes = 0;  // no configuration of this version splits K
    return {};
  });
}

swiglu_status_t swiglu_launch(swiglu_args_t const* args, void*, size_t, void* stream) {
  return swiglu::guarded([&]() -> swiglu::Error { return swiglu::launch(args, stream); });
}

}  // extern "C"
