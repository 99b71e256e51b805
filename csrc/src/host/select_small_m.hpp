// Which small-M configuration a gate/up product of few tokens gets where the caller does not say.
#pragma once

#include <cstdint>

#include "swiglu/swiglu.h"

namespace swiglu {

inline constexpr int kNoConfig = -1;

// kNoConfig where a large tile is expected to be faster, or none is compiled for these types.
int select_small_m(int64_t m, int64_t n, swiglu_dtype_t dtype, swiglu_activation_t activation,
                   int num_sms);

}  // namespace swiglu
