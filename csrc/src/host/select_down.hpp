// Which configuration a down projection gets where the caller does not say: a pure function of the
// problem and the number of multiprocessors.
#pragma once

#include "swiglu/swiglu.h"

namespace swiglu {

// m, n, num_sms >= 1.
int select_down_config(int64_t m, int64_t n, int64_t k, swiglu_dtype_t dtype, int num_sms);

}  // namespace swiglu
