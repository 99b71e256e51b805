// What the rows of a small-M tile are, and what becomes of their sums: 8 outputs, 16 bytes, a
// chunk.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>

#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/numeric_conversion.h"

namespace swiglu::device {

// 128 bytes, one row of the widest swizzle.
inline constexpr int kBoxColumns = 64;

// A matrix as a tensor map sees it: dimensions from the innermost, whose stride is 1, in elements.
struct MatrixView {
  uint32_t rank;
  std::array<int64_t, 4> extents;
  std::array<int64_t, 3> strides;
  std::array<int, 4> box;
};

// [rows, columns] in boxes of box_rows rows.
inline MatrixView plain_view(int64_t rows, int64_t columns, int64_t row_stride, int box_rows) {
  return {2, {columns, rows}, {row_stride}, {kBoxColumns, box_rows}};
}

template <class Element>
__device__ __forceinline__ uint4 pack_chunk(cutlass::Array<float, 8> const& outputs) {
  auto const rounded = cutlass::NumericArrayConverter<Element, float, 8>{}(outputs);
  return reinterpret_cast<uint4 const&>(rounded);
}

// out = act(gate) * up of weights [2N, K]: the tensor map alternates 8 rows of gate and the 8 rows
// of up that belong to the same outputs, as in mainloop/weight_view.hpp.
template <class Activation>
struct PairMul {
  static constexpr int kRowsPerChunk = 16;

  static MatrixView weights(int64_t n, int64_t k, int64_t row_stride, int box_rows) {
    return {4,
            {k, 8, 2, n / 8},
            {row_stride, row_stride * n, row_stride * 8},
            {kBoxColumns, 8, 2, box_rows / 16}};
  }
  __device__ __forceinline__ static void load_weights(CUtensorMap const* map, uint64_t* barrier,
                                                      cute::TMA::CacheHintSm90 hint, void* to,
                                                      int column, int row) {
    cute::SM90_TMA_LOAD::copy(map, barrier, uint64_t(hint), to, column, 0, 0, row / 16);
  }
  __device__ __forceinline__ static void prefetch_weights(CUtensorMap const* map, int column,
                                                          int row) {
    cute::SM90_TMA_LOAD::PREFETCH::copy(map, column, 0, 0, row / 16);
  }

  template <class Element>
  __device__ __forceinline__ static uint4 pack(float const (&rows)[16]) {
    cutlass::Array<float, 8> outputs;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) {
      outputs[i] = Activation{}(rows[i]) * rows[8 + i];
    }
    return pack_chunk<Element>(outputs);
  }
};

// out = x . W^T of weights [N, K].
struct Plain {
  static constexpr int kRowsPerChunk = 8;

  static MatrixView weights(int64_t n, int64_t k, int64_t row_stride, int box_rows) {
    return plain_view(n, k, row_stride, box_rows);
  }
  __device__ __forceinline__ static void load_weights(CUtensorMap const* map, uint64_t* barrier,
                                                      cute::TMA::CacheHintSm90 hint, void* to,
                                                      int column, int row) {
    cute::SM90_TMA_LOAD::copy(map, barrier, uint64_t(hint), to, column, row);
  }
  __device__ __forceinline__ static void prefetch_weights(CUtensorMap const* map, int column,
                                                          int row) {
    cute::SM90_TMA_LOAD::PREFETCH::copy(map, column, row);
  }

  template <class Element>
  __device__ __forceinline__ static uint4 pack(float const (&rows)[8]) {
    cutlass::Array<float, 8> outputs;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) {
      outputs[i] = rows[i];
    }
    return pack_chunk<Element>(outputs);
  }
};

}  // namespace swiglu::device
