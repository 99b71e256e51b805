// A validated call: the ABI's argument struct with every rule checked and every default filled in.
#pragma once

#include <cstdint>

#include "host/error.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// Largest group of clusters that swiglu_args_t.swizzle may ask for.
inline constexpr int32_t kMaxSwizzle = 1024;

// M = tokens, N = intermediate_size, K = hidden_size; strides in elements.
struct Problem {
  swiglu_dtype_t dtype = SWIGLU_BF16;
  swiglu_activation_t activation = SWIGLU_SILU;
  int config = SWIGLU_CONFIG_AUTO;
  swiglu_raster_t raster = SWIGLU_RASTER_AUTO;
  int swizzle = 0;
  int num_sms = 0;
  bool weights_are_constant = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  void const* x = nullptr;
  int64_t x_row_stride = 0;
  void const* gate_up = nullptr;
  int64_t gate_up_row_stride = 0;
  void* out = nullptr;
  int64_t out_row_stride = 0;
};

// Checks `args` against every rule of swiglu.h that needs no device and copies it into *problem.
Error validate_problem(swiglu_args_t const* args, Problem* problem);

}  // namespace swiglu
