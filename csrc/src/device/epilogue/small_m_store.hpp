// From a small-M CTA's accumulators to outputs, by way of shared memory: there a token's rows lie
// side by side, and the CTAs of a cluster that split K find each other's sums.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cute/pointer.hpp"
#include "cutlass/cutlass.h"

namespace swiglu::device {

template <class Tile>
struct SmallMStore {
  using Output = typename Tile::Output;
  using Element = typename Tile::Element;
  using Params = typename Tile::Params;
  using SharedStorage = typename Tile::SharedStorage;
  using Work = typename Tile::Work;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kRows = Tile::kRows;
  static constexpr int kSplits = Tile::kSplits;
  static constexpr int kConsumers = Tile::kConsumers;
  static constexpr int kPitch = Tile::kPitch;

  // Accumulators -> partial[token][row]. A thread holds rows r and r + 8 and two adjacent tokens of
  // every eight, in the order (token, row).
  template <class Accumulators>
  CUTLASS_DEVICE static void keep_partial(float* partial, Accumulators const& accumulators) {
    int const warp = threadIdx.x / 32;
    int const lane = threadIdx.x % 32;
    float* const mine = partial + 2 * (lane % 4) * kPitch + 16 * warp + lane / 4;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTokens / 2; ++i) {
      mine[(8 * (i / 4) + i % 2) * kPitch + 8 * (i / 2 % 2)] = accumulators(i);
    }
  }

  // Outputs from the sums of all ranks, 8 adjacent ones of a token at a time; the CTAs of a cluster
  // share the tile.
  CUTLASS_DEVICE static void store(Params const& params, SharedStorage const& storage,
                                   Work const& work) {
    constexpr int kChunks = kRows / Output::kRowsPerChunk;
    int const first_token = work.token_tile * kTokens;
    int const tokens = params.m - first_token < kTokens ? params.m - first_token : kTokens;
    int const first_column = work.row_tile * kChunks * 8;
    uint32_t const partial = cute::cast_smem_ptr_to_uint(storage.partial);
    int const share = kSplits == 1 ? 0 : work.rank;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = share * kConsumers + threadIdx.x; i < tokens * kChunks;
         i += kSplits * kConsumers) {
      int const token = i / kChunks;
      int const chunk = i % kChunks;
      int const column = first_column + 8 * chunk;
      if (column < params.n) {
        float rows[Output::kRowsPerChunk];
        sum_over_ranks(partial + 4 * (token * kPitch + chunk * Output::kRowsPerChunk), rows);
        Element* const to = params.out + (first_token + token) * params.out_row_stride + column;
        *reinterpret_cast<uint4*>(to) = Output::template pack<Element>(rows);
      }
    }
  }

  // `address` is that of the same rows in every CTA's shared memory.
  CUTLASS_DEVICE static void sum_over_ranks(uint32_t address,
                                            float (&rows)[Output::kRowsPerChunk]) {
    CUTLASS_PRAGMA_UNROLL
    for (int rank = 0; rank < kSplits; ++rank) {
      uint32_t const there = kSplits == 1 ? address : cute::set_block_rank(address, rank);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Output::kRowsPerChunk; i += 4) {
        float4 const part = kSplits == 1 ? load_own(there + 4 * i) : load_shared(there + 4 * i);
        rows[i] = rank == 0 ? part.x : rows[i] + part.x;
        rows[i + 1] = rank == 0 ? part.y : rows[i + 1] + part.y;
        rows[i + 2] = rank == 0 ? part.z : rows[i + 2] + part.z;
        rows[i + 3] = rank == 0 ? part.w : rows[i + 3] + part.w;
      }
    }
  }

  CUTLASS_DEVICE static float4 load_own(uint32_t address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
  }

  CUTLASS_DEVICE static float4 load_shared(uint32_t address) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
  }
};

}  // namespace swiglu::device
