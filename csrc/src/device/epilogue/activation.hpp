// The gate's activation functions, FP32 in and out, for epilogue/pair_mul_store.hpp.
//
// Written without branches and without the accurate expf/division, whose slow paths are function
// calls in SASS (the build refuses a CALL in a kernel). The relative error stays under 1e-5 (the
// exponent's rounding at large |x|), against 3.9e-3 for the one bf16 rounding that follows.
#pragma once

#include <cuda_runtime.h>

namespace swiglu::device {

// 2^x and 1/x of the special-function unit; flushing denormals saves two instructions each, and an
// exponential below 2^-126 is nothing beside what it is added to.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// silu(x) = x / (1 + e^-x), both sides scaled by 2^-6: rcp.ftz returns 0 for arguments over 2^126,
// which the plain form reaches at x = -87.3 already, where silu is still a normal number. This one
// holds to -91.4; below it the result is -0, as PyTorch's is from -88.7 on. x = -inf gives
// -inf * 0 = NaN as in PyTorch, +inf gives +inf, NaN stays NaN.
struct Silu {
  __device__ __forceinline__ float operator()(float x) const {
    constexpr float kMinusLog2E = -1.4426950408889634f;
    constexpr float kScale = 0x1p-6f;
    return (x * kScale) * rcp_approx(kScale + exp2_approx(fmaf(x, kMinusLog2E, -6.0f)));
  }
};

// GELU, tanh form: x/2 (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3), which
// needs no tanh and keeps its relative accuracy for large negative x.
struct GeluTanh {
  __device__ __forceinline__ float operator()(float x) const {
    constexpr float kScale = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
    float const u = x * (1.0f + 0.044715f * x * x);
    return x * rcp_approx(1.0f + exp2_approx(kScale * u));
  }
};

// max(x, 0) that lets NaN through, as torch.relu does; fmaxf would turn NaN into 0.
struct Relu {
  __device__ __forceinline__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};

}  // namespace swiglu::device
