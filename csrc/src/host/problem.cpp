#include "host/problem.hpp"

#include <string>

#include "host/checks.hpp"
#include "host/config.hpp"
#include "host/select_config.hpp"

namespace swiglu {
namespace {

Error check_options(swiglu_args_t const& args) {
  if (Error error = check_enum("dtype", args.dtype, {SWIGLU_BF16, SWIGLU_FP16})) return error;
  if (Error error =
          check_enum("activation", args.activation, {SWIGLU_SILU, SWIGLU_GELU_TANH, SWIGLU_RELU}))
    return error;
  if (Error error = check_enum("raster", args.raster,
                               {SWIGLU_RASTER_AUTO, SWIGLU_RASTER_ALONG_M, SWIGLU_RASTER_ALONG_N}))
    return error;
  if (args.swizzle < 0 || args.swizzle > kMaxSwizzle) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "swizzle", "0 to " + std::to_string(kMaxSwizzle),
                  std::to_string(args.swizzle));
  }
  if (Error error = check_enum("flags", args.flags, {0, SWIGLU_WEIGHTS_CONSTANT})) return error;
  if (args.num_sms < 0) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "num_sms", "0 or more", std::to_string(args.num_sms));
  }
  if (args.config < SWIGLU_CONFIG_AUTO || args.config >= kNumConfigs) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "config", "-1 to " + std::to_string(kNumConfigs - 1),
                  std::to_string(args.config));
  }
  if (args.config != SWIGLU_CONFIG_AUTO &&
      !is_compiled(args.config, static_cast<swiglu_dtype_t>(args.dtype),
                   static_cast<swiglu_activation_t>(args.activation))) {
    return {SWIGLU_NOT_COMPILED, std::string("config: ") + config_at(args.config).name +
                                     " is compiled for bf16 with SiLU only, asked for dtype " +
                                     std::to_string(args.dtype) + " with activation " +
                                     std::to_string(args.activation)};
  }
  return {};
}

Error check_extents(swiglu_args_t const& args) {
  if (Error error = check_output(args.m, args.n)) return error;
  if (args.config != SWIGLU_CONFIG_AUTO) {
    if (Error error = check_grid(config_at(args.config), args.m, args.n)) return error;
  }
  return check_depth(args.k);
}

Error check_inputs(swiglu_args_t const& args) {
  if (Error error = check_pointer("x", args.x)) return error;
  if (Error error = check_stride("x_row_stride", args.x_row_stride, args.k)) return error;
  if (Error error = check_pointer("gate_up", args.gate_up)) return error;
  if (Error error = check_stride("gate_up_row_stride", args.gate_up_row_stride, args.k))
    return error;
  if (args.gate_up_row_stride > (kMaxStride - 1) / args.n) {
    return refuse(SWIGLU_INVALID_SHAPE, "gate_up_row_stride", "below 2^39 when multiplied by n",
                  std::to_string(args.gate_up_row_stride));
  }
  return {};
}

Error check_tensors(swiglu_args_t const& args) {
  if (args.m == 0) {
    return {};
  }
  if (Error error = check_pointer("out", args.out)) return error;
  if (Error error = check_stride("out_row_stride", args.out_row_stride, args.n)) return error;
  return args.k == 0 ? Error{} : check_inputs(args);
}

}  // namespace

Error validate_problem(swiglu_args_t const* args, Problem* problem) {
  if (args == nullptr) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "args", "a pointer to swiglu_args_t", "NULL");
  }
  if (args->struct_size != sizeof(swiglu_args_t)) {
    return refuse(SWIGLU_INVALID_ARGUMENT, "struct_size", std::to_string(sizeof(swiglu_args_t)),
                  std::to_string(args->struct_size));
  }
  if (Error error = check_options(*args)) return error;
  if (Error error = check_extents(*args)) return error;
  if (Error error = check_tensors(*args)) return error;
  *problem = {static_cast<swiglu_dtype_t>(args->dtype),
              static_cast<swiglu_activation_t>(args->activation),
              args->config,
              static_cast<swiglu_raster_t>(args->raster),
              args->swizzle,
              args->num_sms,
              (args->flags & SWIGLU_WEIGHTS_CONSTANT) != 0,
              args->m,
              args->n,
              args->k,
              args->x,
              args->x_row_stride,
              args->gate_up,
              args->gate_up_row_stride,
              args->out,
              args->out_row_stride};
  return {};
}

}  // namespace swiglu
