// The small-M instances of gate/up that exist for every type, for all but bf16 with SiLU.
#include "device/epilogue/activation.hpp"
#include "device/small_m_runner.cuh"
#include "host/small_m_list.hpp"

namespace swiglu::device {

#define SWIGLU_OTHER_TYPES(...)                                                  \
  SWIGLU_SMALL_M_LAUNCHER(bf16_gelu, cutlass::bfloat16_t, GeluTanh, __VA_ARGS__) \
  SWIGLU_SMALL_M_LAUNCHER(bf16_relu, cutlass::bfloat16_t, Relu, __VA_ARGS__)     \
  SWIGLU_SMALL_M_LAUNCHER(fp16_silu, cutlass::half_t, Silu, __VA_ARGS__)         \
  SWIGLU_SMALL_M_LAUNCHER(fp16_gelu, cutlass::half_t, GeluTanh, __VA_ARGS__)     \
  SWIGLU_SMALL_M_LAUNCHER(fp16_relu, cutlass::half_t, Relu, __VA_ARGS__)
SWIGLU_SMALL_M_ALL_TYPES(SWIGLU_OTHER_TYPES)

}  // namespace swiglu::device
