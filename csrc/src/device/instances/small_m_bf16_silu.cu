// Every small-M instance of gate/up, for bf16 with SiLU.
#include "device/epilogue/activation.hpp"
#include "device/small_m_runner.cuh"
#include "host/small_m_list.hpp"

namespace swiglu::device {

#define SWIGLU_BF16_SILU(...) \
  SWIGLU_SMALL_M_LAUNCHER(bf16_silu, cutlass::bfloat16_t, Silu, __VA_ARGS__)
SWIGLU_SMALL_M(SWIGLU_BF16_SILU)

}  // namespace swiglu::device
