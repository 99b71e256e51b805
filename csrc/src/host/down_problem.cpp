#include "host/down_problem.hpp"

#include <string>

#include "host/checks.hpp"
#include "host/down_config.hpp"

namespace swiglu {
namespace {

Error check_options(swiglu_down_args_t const& args) {
  if (Error error = check_enum("dtype", args.dtype, {SWIGLU_BF16, SWIGLU_FP16})) return error;
  if (Error error = check_enum("flags", args.flags, {0, SWIGLU_WEIGHTS_CONSTANT})) return error;
  if (args.config < SWIGLU_CONFIG_AUTO || args.config >= kNumDownConfigs) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "config", "-1 to " + std::to_string(kNumDownConfigs - 1),
                  std::to_string(args.config));
  }
  if (args.config != SWIGLU_CONFIG_AUTO &&
      !is_down_compiled(args.config, static_cast<swiglu_dtype_t>(args.dtype))) {
    return {SWIGLU_NOT_COMPILED, std::string("config: ") + down_config_at(args.config).name +
                                     " is compiled for bf16 only, asked for dtype " +
                                     std::to_string(args.dtype)};
  }
  return {};
}

Error check_inputs(swiglu_down_args_t const& args) {
  if (Error error = check_pointer("x", args.x)) return error;
  if (Error error = check_stride("x_row_stride", args.x_row_stride, args.k)) return error;
  if (Error error = check_pointer("weight", args.weight)) return error;
  return check_stride("weight_row_stride", args.weight_row_stride, args.k);
}

Error check_tensors(swiglu_down_args_t const& args) {
  if (args.m == 0) {
    return {};
  }
  if (Error error = check_pointer("out", args.out)) return error;
  if (Error error = check_stride("out_row_stride", args.out_row_stride, args.n)) return error;
  return args.k == 0 ? Error{} : check_inputs(args);
}

}  // namespace

Error validate_down_problem(swiglu_down_args_t const* args, DownProblem* problem) {
  if (args == nullptr) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "args", "a pointer to swiglu_down_args_t", "NULL");
  }
  if (args->struct_size != sizeof(swiglu_down_args_t)) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "struct_size",
                  std::to_string(sizeof(swiglu_down_args_t)), std::to_string(args->struct_size));
  }
  if (Error error = check_options(*args)) return error;
  if (Error error = check_output(args->m, args->n)) return error;
  if (args->config != SWIGLU_CONFIG_AUTO) {
    if (Error error = check_grid(down_config_at(args->config), args->m, args->n)) return error;
  }
  if (Error error = check_depth(args->k)) return error;
  if (Error error = check_tensors(*args)) return error;
  *problem = {static_cast<swiglu_dtype_t>(args->dtype),
              args->config,
              (args->flags & SWIGLU_WEIGHTS_CONSTANT) != 0,
              args->m,
              args->n,
              args->k,
              args->x,
              args->x_row_stride,
              args->weight,
              args->weight_row_stride,
              args->out,
              args->out_row_stride};
  return {};
}

}  // namespace swiglu
