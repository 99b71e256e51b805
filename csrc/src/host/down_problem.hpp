// A validated call of the down projection: swiglu_down_args_t with every rule checked.
#pragma once

#include <cstdint>

#include "host/error.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// M = tokens, N = hidden_size, K = intermediate_size; strides in elements.
struct DownProblem {
  swiglu_dtype_t dtype = SWIGLU_BF16;
  int config = SWIGLU_CONFIG_AUTO;
  bool weights_are_constant = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  void const* x = nullptr;
  int64_t x_row_stride = 0;
  void const* weight = nullptr;
  int64_t weight_row_stride = 0;
  void* out = nullptr;
  int64_t out_row_stride = 0;
};

// Checks `args` against every rule of swiglu.h that needs no device and copies it into *problem.
Error validate_down_problem(swiglu_down_args_t const* args, DownProblem* problem);

}  // namespace swiglu
