// What every function that takes spans asks of them.
#pragma once

#include <cstdint>

#include "host/error.hpp"
#include "swiglu/transfer.h"

namespace swiglu {

// At least one, and each with memory and bytes.
Error check_spans(swiglu_span_t const* spans, int64_t count);

}  // namespace swiglu
