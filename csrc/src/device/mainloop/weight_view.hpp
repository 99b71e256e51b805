// How the weights [2N, K] look to the K loop: gate and up rows interleaved by the tensor map.
//
// The weights stay the plain merged tensor [2N, K], all gate rows and then all up rows. Row
// r = 2g * b + g * h + i of the interleaved operand (0 <= i < g, h = 0 for gate, 1 for up) is row
// h * N + g * b + i of that tensor, so the N mode of B is the hierarchical layout
//
//   shape (g, 2, N/g), stride (row, N * row, g * row)        g = interleave granularity
//
// which TMA takes as two extra dimensions: rank 5 with K and the unused batch mode. One TMA
// instruction per stage as before, the same 128-byte rows out of L2; measured as fast as a
// physically interleaved copy (NOTES.md).
#pragma once

#include "cute/tensor.hpp"

namespace swiglu::device {

// Gate and up apart, as they lie in memory: B is a batch of two [N, K] tensors, gate and up. What
// Kernel-1 reads.
inline constexpr int kGateThenUp = 0;

// Weights that are interleaved in memory already (by any granularity): B is an ordinary [2N, K]
// tensor. Only for measuring against the interleaving tensor map.
inline constexpr int kPhysicallyInterleaved = -1;

template <int Granularity>
struct WeightView {
  static constexpr int kBatches = 1;
  using Stride = cute::Stride<cute::Stride<int64_t, int64_t, int64_t>, cute::Int<1>, int64_t>;
  CUTLASS_HOST_DEVICE static auto rows(int two_n) {
    return cute::make_shape(cute::Int<Granularity>{}, cute::Int<2>{}, two_n / (2 * Granularity));
  }
  CUTLASS_HOST_DEVICE static Stride stride(int64_t row, int two_n) {
    return {{row, row * (two_n / 2), row * Granularity}, {}, 0};
  }
};

template <>
struct WeightView<1> {
  static constexpr int kBatches = 1;
  using Stride = cute::Stride<cute::Stride<int64_t, int64_t>, cute::Int<1>, int64_t>;
  CUTLASS_HOST_DEVICE static auto rows(int two_n) {
    return cute::make_shape(cute::Int<2>{}, two_n / 2);
  }
  CUTLASS_HOST_DEVICE static Stride stride(int64_t row, int two_n) {
    return {{row * (two_n / 2), row}, {}, 0};
  }
};

template <>
struct WeightView<kGateThenUp> {
  static constexpr int kBatches = 2;
  using Stride = cute::Stride<int64_t, cute::Int<1>, int64_t>;
  CUTLASS_HOST_DEVICE static auto rows(int two_n) { return two_n / 2; }
  CUTLASS_HOST_DEVICE static Stride stride(int64_t row, int two_n) {
    return {row, {}, row * (two_n / 2)};
  }
};

template <>
struct WeightView<kPhysicallyInterleaved> {
  static constexpr int kBatches = 1;
  using Stride = cute::Stride<int64_t, cute::Int<1>, int64_t>;
  CUTLASS_HOST_DEVICE static auto rows(int two_n) { return two_n; }
  CUTLASS_HOST_DEVICE static Stride stride(int64_t row, int) { return {row, {}, 0}; }
};

}  // namespace swiglu::device
