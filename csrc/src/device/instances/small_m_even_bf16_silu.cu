// The small-M instances of gate/up with one CTA for each multiprocessor, for bf16 with SiLU.
#include "device/epilogue/activation.hpp"
#include "device/small_m_runner.cuh"
#include "host/small_m_list.hpp"

namespace swiglu::device {

#define SWIGLU_BF16_SILU(...) \
  SWIGLU_SMALL_M_LAUNCHER(bf16_silu, cutlass::bfloat16_t, Silu, __VA_ARGS__)
SWIGLU_SMALL_M_EVEN(SWIGLU_BF16_SILU)

}  // namespace swiglu::device
