// What a CTA of the small-M kernel works on: tile sizes, shared memory, arguments, its share.
#pragma once

#include <cuda.h>

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "device/epilogue/small_m_output.hpp"

namespace swiglu::device {

// kTokens: 8 to 256, a multiple of 8. kTileK: 64, 128 or 256. kSplits: 1 to 8.
template <int kTokens_, int kWarpgroups_, int kTileK_, int kStages_, int kSplits_, int kSharers_,
          int kTurn_>
struct SmallMConfig {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kTileK = kTileK_;
  static constexpr int kStages = kStages_;
  static constexpr int kSplits = kSplits_;
  static constexpr int kSharers = kSharers_;
  static constexpr int kTurn = kTurn_;
};

template <class Config, class Element_, class Output_>
struct SmallMTile {
  using Element = Element_;
  using Output = Output_;
  using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;
  static constexpr int kTokens = Config::kTokens;
  static constexpr int kStages = Config::kStages;
  static constexpr int kSplits = Config::kSplits;
  static constexpr int kSharers = Config::kSharers;
  static constexpr int kTurn = Config::kTurn;
  static constexpr int kClusterSize = kSplits * kSharers;
  static constexpr int kTokenBox = kTokens / kSharers;  // rows of tokens that one CTA loads
  static_assert(kSplits == 1 || kSharers == 1, "a cluster shares a tile's sum or its tokens");
  static_assert(kTokenBox % 8 == 0, "a swizzle atom has 8 rows");
  static constexpr int kTileK = Config::kTileK;
  static constexpr int kChunksK = kTileK / kBoxColumns;
  static constexpr int kRows = 64 * Config::kWarpgroups;
  static constexpr int kConsumers = 128 * Config::kWarpgroups;
  static constexpr uint32_t MaxThreadsPerBlock = kConsumers + 32;

  using TokenTile = cute::Int<kTokens>;
  using RowTile = cute::Int<kRows>;
  using KTile = cute::Int<kTileK>;
  using Stages = cute::Int<kStages>;
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::_64, TokenTile, cute::_16>>(),
      cute::Layout<cute::Shape<cute::Int<Config::kWarpgroups>, cute::_1, cute::_1>>{}));

  // Rows of 128 bytes, one row of the widest swizzle; a stage holds its K chunks one after another.
  using SwizzleAtom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using SmemWeights =
      decltype(cute::tile_to_shape(SwizzleAtom{}, cute::Shape<RowTile, KTile, Stages>{}));
  using SmemTokens =
      decltype(cute::tile_to_shape(SwizzleAtom{}, cute::Shape<TokenTile, KTile, Stages>{}));
  static constexpr uint32_t kStageBytes = (kRows + kTokens) * kTileK * sizeof(Element);

  // What a CTA asks of L2 beyond its stages before it waits for the launch before: 16 KB, or what
  // one step takes. More costs more than it wins, as it passes through L2 twice (NOTES.md, run 15).
  static constexpr int kStepBytes = kRows * kTileK * sizeof(Element);
  static constexpr int kStepsAhead = kStepBytes < 16384 ? 16384 / kStepBytes : 1;

  // Partial sums lie token after token. A pitch of 4 more than a multiple of 16 words: the writes
  // of a warp (4 tokens two apart, 8 rows) then fall on 32 banks.
  static constexpr int kPitch = kRows + 4;

  struct Operands {
    alignas(1024) Element weights[cute::cosize_v<SmemWeights>];
    alignas(1024) Element tokens[cute::cosize_v<SmemTokens>];
  };
  struct SharedStorage {
    union {
      Operands operands;
      alignas(16) float partial[kTokens * kPitch];  // after the last stage was consumed
    };
    uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  static constexpr int SharedStorageSize = sizeof(SharedStorage);

  // As many CTAs as fit into a multiprocessor's 228 KB, of which each costs 1 KB more than it uses;
  // the compiler must leave them registers.
  static constexpr uint32_t kFitting = 228 * 1024 / (SharedStorageSize + 1024);
  static constexpr uint32_t kRegisterBound = 65536 / (MaxThreadsPerBlock * (kTokens / 2 + 64));
  static constexpr uint32_t MinBlocksPerMultiprocessor =
      kFitting < kRegisterBound ? kFitting : kRegisterBound;
  static_assert(kFitting >= 1, "stages must fit into shared memory");

  struct Params {
    CUtensorMap weights;  // as Output::weights says, in boxes of kRows rows
    CUtensorMap tokens;   // in boxes of kTokenBox rows
    Element* out;
    int64_t out_row_stride;
    int m;
    int n;
    int k;
    int token_tiles;
    bool weights_are_constant;  // not written by work that may still run
  };

  // What this CTA computes: one tile of outputs over one share of the steps along K.
  struct Work {
    int row_tile;
    int token_tile;
    int k_begin;
    int k_count;
    int k_first;  // of k_count, where it starts; it goes round
    uint32_t rank;

    // Steps whose stages are free from the start.
    CUTLASS_DEVICE int early_steps() const { return k_count < kStages ? k_count : kStages; }
  };

  CUTLASS_DEVICE static Work work_of(Params const& params) {
    int const cluster = blockIdx.x / kClusterSize;
    int const rank = blockIdx.x % kClusterSize;
    // Tiles that read the same weights are neighbours.
    int const rows = params.token_tiles == 1 ? cluster : cluster / params.token_tiles;
    int const token_tile = cluster - rows * params.token_tiles;
    int const row_tile = rows * kSharers + rank % kSharers;
    int const steps = (params.k + kTileK - 1) / kTileK;
    int const split = rank / kSharers;
    int const begin = static_cast<int>(int64_t{steps} * split / kSplits);
    int const count = static_cast<int>(int64_t{steps} * (split + 1) / kSplits) - begin;
    int const first = kTurn == 0 || count == 0 ? 0 : rows * kTurn % count;
    return {row_tile, token_tile, begin, count, first, static_cast<uint32_t>(rank)};
  }
};

}  // namespace swiglu::device
