#include "host/problem.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "host/config.hpp"
#include "host/select_config.hpp"

namespace swiglu {
namespace {

// Tile and cluster rounding of the 32-bit extents in the tile scheduler must not overflow.
constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 1024;
constexpr int64_t kMaxColumns = (int64_t{1} << 30) - 1024;
// A tensor map holds strides below 2^40 bytes.
constexpr int64_t kMaxStride = int64_t{1} << 39;
// Keeps the number of tiles below 2^31.
constexpr int64_t kMaxOutputs = int64_t{1} << 43;
constexpr int64_t kAlignment = 8;  // 16 bytes of 2-byte elements

Error refuse(swiglu_status_t status, char const* argument, std::string const& rule,
             std::string const& value) {
  return {status, std::string(argument) + ": must be " + rule + ", is " + value};
}

Error check_range(char const* argument, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return refuse(SWIGLU_INVALID_SHAPE, argument,
                  std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
  }
  return {};
}

Error check_multiple(swiglu_status_t status, char const* argument, int64_t value) {
  if (value % kAlignment != 0) {
    return refuse(status, argument, "a multiple of " + std::to_string(kAlignment),
                  std::to_string(value));
  }
  return {};
}

Error check_enum(char const* argument, int32_t value, std::initializer_list<int32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) {
    return {};
  }
  std::string rule = "one of";
  for (int32_t option : allowed) {
    rule += " " + std::to_string(option);
  }
  return refuse(SWIGLU_INVALID_ARGUMENT, argument, rule, std::to_string(value));
}

Error check_pointer(char const* argument, void const* pointer) {
  if (pointer == nullptr) {
    return refuse(SWIGLU_INVALID_ARGUMENT, argument, "a device pointer", "NULL");
  }
  uintptr_t const address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 16 != 0) {
    return refuse(SWIGLU_MISALIGNED, argument, "aligned to 16 bytes",
                  std::to_string(address % 16) + " bytes past");
  }
  return {};
}

Error check_stride(char const* argument, int64_t stride, int64_t columns) {
  if (Error error = check_range(argument, stride, columns, kMaxStride - 1)) {
    return error;
  }
  return check_multiple(SWIGLU_MISALIGNED, argument, stride);
}

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
  if (Error error = check_range("m", args.m, 0, kMaxExtent)) return error;
  if (Error error = check_range("n", args.n, kAlignment, kMaxColumns)) return error;
  if (Error error = check_multiple(SWIGLU_INVALID_SHAPE, "n", args.n)) return error;
  if (args.m > kMaxOutputs / args.n) {
    return refuse(SWIGLU_INVALID_SHAPE, "m", "at most 2^43 when multiplied by n",
                  std::to_string(args.m));
  }
  if (Error error = check_range("k", args.k, 0, kMaxExtent)) return error;
  return check_multiple(SWIGLU_INVALID_SHAPE, "k", args.k);
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
