// Which configuration, raster and swizzle a problem gets where the caller does not say: a pure
// function of the problem and the number of multiprocessors.
#pragma once

#include "host/error.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// m, n, num_sms >= 1.
swiglu_choice_t select_config(int64_t m, int64_t n, int64_t k, swiglu_dtype_t dtype,
                              swiglu_activation_t activation, int num_sms);

// The order of output tiles, and how many clusters of them are grouped across it.
swiglu_raster_t select_raster(int64_t m, int64_t n, int64_t k);
int select_swizzle(int64_t m, int64_t n, int64_t k);

}  // namespace swiglu
