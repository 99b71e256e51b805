// Every instance of the down projection.
#include "device/small_m_runner.cuh"
#include "host/small_m_list.hpp"

namespace swiglu::device {

#define SWIGLU_BF16(...) SWIGLU_DOWN_LAUNCHER(bf16, cutlass::bfloat16_t, __VA_ARGS__)
#define SWIGLU_FP16(...) SWIGLU_DOWN_LAUNCHER(fp16, cutlass::half_t, __VA_ARGS__)
SWIGLU_DOWN(SWIGLU_BF16)
SWIGLU_DOWN_ALL_TYPES(SWIGLU_FP16)

}  // namespace swiglu::device
