// What a CTA of the small-M kernel works on: tile sizes, shared memory, arguments, its share.
#pragma once

#include <cuda.h>

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "device/epilogue/small_m_output.hpp"

namespace swiglu::device {

// kTokens: 8 to 256, a multiple of 8. kRows: of weights, a multiple of 16. kTileK: 64, 128 or 256.
// kSplits: 1 to 8. kTokenStages: at most kStages; 0 for tokens in the stages of the weights.
template <int kTokens_, int kRows_, int kTileK_, int kStages_, int kSplits_, int kSharers_,
          int kTokenStages_>
struct SmallMConfig {
  static constexpr int kTokens = kTokens_;
  static constexpr int kRows = kRows_;
  static constexpr int kTileK = kTileK_;
  static constexpr int kStages = kStages_;
  static constexpr int kSplits = kSplits_;
  static constexpr int kSharers = kSharers_;
  static constexpr int kTokenStages = kTokenStages_;
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
  // Tokens come out of L2, sooner than weights out of memory, so fewer of their stages keep up and
  // the weights get the room.
  static constexpr int kTokenStages = Config::kTokenStages > 0 ? Config::kTokenStages : kStages;
  static_assert(kTokenStages <= kStages, "weights are never behind the tokens");
  static constexpr int kClusterSize = kSplits * kSharers;
  static constexpr int kTokenBox = kTokens / kSharers;  // rows of tokens that one CTA loads
  static_assert(kSplits == 1 || kSharers == 1, "a cluster shares a tile's sum or its tokens");
  static_assert(kTokenBox % 8 == 0, "a swizzle atom has 8 rows");
  static constexpr int kTileK = Config::kTileK;
  static constexpr int kChunksK = kTileK / kBoxColumns;
  static constexpr int kRows = Config::kRows;
  // WGMMAs come in 64 rows: those beyond the tile read what happens to lie behind it, and their
  // sums are dropped.
  static constexpr int kWarpgroups = (kRows + 63) / 64;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr uint32_t MaxThreadsPerBlock = kConsumers + 32;

  using TokenTile = cute::Int<kTokens>;
  using RowTile = cute::Int<64 * kWarpgroups>;
  using KTile = cute::Int<kTileK>;
  using Stages = cute::Int<kStages>;
  using TokenStages = cute::Int<kTokenStages>;
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<Element, Element, float,
                                 cute::Shape<cute::_64, TokenTile, cute::_16>>(),
      cute::Layout<cute::Shape<cute::Int<kWarpgroups>, cute::_1, cute::_1>>{}));

  // Rows of 128 bytes, one row of the widest swizzle; a stage holds its K chunks one after another.
  using SwizzleAtom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using SmemWeights = decltype(cute::make_composed_layout(
      SwizzleAtom{}.layout_a(), SwizzleAtom{}.offset(),
      cute::Layout<cute::Shape<cute::Shape<cute::_8, cute::Int<8 * kWarpgroups>>,
                               cute::Shape<cute::_64, cute::Int<kChunksK>>, Stages>,
                   cute::Stride<cute::Stride<cute::_64, cute::_512>,
                                cute::Stride<cute::_1, cute::Int<64 * kRows>>,
                                cute::Int<kRows * kTileK>>>{}));
  using SmemTokens =
      decltype(cute::tile_to_shape(SwizzleAtom{}, cute::Shape<TokenTile, KTile, TokenStages>{}));
  static constexpr uint32_t kStepBytes = (kRows + kTokens) * kTileK * sizeof(Element);

  // Partial sums lie token after token. A pitch of 4 more than a multiple of 16 words: the writes
  // of a warp (4 tokens two apart, 8 rows) then fall on 32 banks.
  static constexpr int kPitch = kRows + 4;

  struct Operands {
    alignas(1024) Element weights[kRows * kTileK * kStages];
    alignas(1024) Element tokens[cute::cosize_v<SmemTokens>];
  };
  struct SharedStorage {
    union {
      Operands operands;
      alignas(16) float partial[kTokens * kPitch];  // of the last tile, after its last stage
    };
    uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  // The rows beyond the last stage's tile must be shared memory as well.
  static constexpr int kReadBytes =
      (kRows * kTileK * kStages + (64 * kWarpgroups - kRows) * kBoxColumns) * sizeof(Element);
  static constexpr int SharedStorageSize =
      sizeof(SharedStorage) > kReadBytes ? sizeof(SharedStorage) : kReadBytes;

  // As many CTAs as fit into a multiprocessor's 228 KB, of which each costs 1 KB more than it uses;
  // the compiler must leave them registers.
  static constexpr uint32_t kFitting = 228 * 1024 / (SharedStorageSize + 1024);
  static constexpr uint32_t kRegisterBound = 65536 / (MaxThreadsPerBlock * (kTokens / 2 + 24));
  static constexpr uint32_t MinBlocksPerMultiprocessor =
      kFitting < kRegisterBound ? kFitting : kRegisterBound;
  static_assert(kFitting >= 1, "stages must fit into shared memory");

  // One CTA for each multiprocessor, where one of the next launch fits beside it and no other.
  static constexpr bool kEven = Config::kTokenStages > 0 && kClusterSize == 1 && kFitting == 2;
  static_assert(kEven || kRows % 64 == 0, "what is left of 64 rows needs an even grid");

  struct Params {
    CUtensorMap weights;  // as Output::weights says, in boxes of kRows rows
    CUtensorMap tokens;   // in boxes of kTokenBox rows
    Element* out;
    int64_t out_row_stride;
    int m;
    int n;
    int k;
    int token_tiles;
    int tiles;                  // of outputs, rows times tokens
    int tiles_per_cta;          // or per cluster
    bool weights_are_constant;  // not written by work that may still run
  };

  // What this CTA computes: tiles of outputs, over one share of the steps along K.
  struct Work {
    int first_tile;
    int tiles;
    int k_begin;
    int k_count;
    uint32_t rank;
  };

  CUTLASS_DEVICE static Work work_of(Params const& params) {
    int const cluster = blockIdx.x / kClusterSize;
    int const rank = blockIdx.x % kClusterSize;
    int const first = cluster * params.tiles_per_cta;
    int const left = params.tiles - first;
    int const tiles = left < params.tiles_per_cta ? left : params.tiles_per_cta;
    int const steps = (params.k + kTileK - 1) / kTileK;
    int const split = rank / kSharers;
    int const begin = static_cast<int>(int64_t{steps} * split / kSplits);
    int const count = static_cast<int>(int64_t{steps} * (split + 1) / kSplits) - begin;
    return {first, tiles < 0 ? 0 : tiles, begin, count, static_cast<uint32_t>(rank)};
  }

  struct Place {
    int row_tile;
    int token_tile;
  };

  // Tiles that read the same weights are neighbours.
  CUTLASS_DEVICE static Place place_of(Params const& params, int tile, uint32_t rank) {
    int const rows = params.token_tiles == 1 ? tile : tile / params.token_tiles;
    return {rows * kSharers + static_cast<int>(rank) % kSharers, tile - rows * params.token_tiles};
  }
};

}  // namespace swiglu::device
