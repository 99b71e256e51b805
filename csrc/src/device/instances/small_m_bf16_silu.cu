// The small-M instances of gate/up with one CTA a tile, for bf16 with SiLU.
#include "device/epilogue/activation.hpp"
#include "device/small_m_runner.cuh"
#include "host/small_m_list.hpp"

namespace swiglu::device {

#define SWIGLU_BF16_SILU(...) \
  SWIGLU_SMALL_M_LAUNCHER(bf16_silu, cutlass::bfloat16_t, Silu, __VA_ARGS__)
SWIGLU_SMALL_M_ALL_TYPES(SWIGLU_BF16_SILU)
SWIGLU_SMALL_M_TILES(SWIGLU_BF16_SILU)

}  // namespace swiglu::device
