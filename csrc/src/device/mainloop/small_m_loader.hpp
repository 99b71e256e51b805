// The one thread of a small-M CTA that fills its stages.
#pragma once

#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/cutlass.h"
#include "device/epilogue/small_m_output.hpp"

namespace swiglu::device {

// A place in a ring of stages, and the parity of the round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;

  CUTLASS_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

template <class Tile>
struct SmallMLoader {
  using Output = typename Tile::Output;
  using Element = typename Tile::Element;
  using FullBarrier = typename Tile::FullBarrier;
  using EmptyBarrier = typename Tile::EmptyBarrier;
  static constexpr int kStages = Tile::kStages;
  static constexpr int kTokenStages = Tile::kTokenStages;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kRows = Tile::kRows;
  static constexpr int kTileK = Tile::kTileK;
  static constexpr int kChunksK = Tile::kChunksK;
  static constexpr int kSharers = Tile::kSharers;
  static constexpr int kTokenBox = Tile::kTokenBox;

  // A step along K of one of the CTA's tiles; where its weights or tokens go, and which barrier
  // counts both.
  template <int kRing>
  struct Cursor {
    int tile;
    int step = 0;
    Ring<kStages> full;
    Ring<kRing> place;

    CUTLASS_DEVICE void advance(int k_count) {
      full.advance();
      place.advance();
      if (++step == k_count) {
        step = 0;
        ++tile;
      }
    }
  };

  typename Tile::Params const& params;
  typename Tile::SharedStorage& storage;
  typename Tile::Work work;
  int const end = work.k_count == 0 ? work.first_tile : work.first_tile + work.tiles;
  Cursor<kStages> weights{work.first_tile};      // the next step whose weights are to be loaded
  Cursor<kTokenStages> tokens{work.first_tile};  // the same for tokens, never ahead

  // Otherwise the first load waits for its tensor map.
  CUTLASS_DEVICE void fetch_maps() {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&params.weights));
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&params.tokens));
  }

  // The weights of the first steps, whose stages are free, without their tokens.
  CUTLASS_DEVICE void fill_weights() {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = 0; step < kStages && weights.tile < end; ++step) {
      load_weights();
    }
  }

  CUTLASS_DEVICE void run(bool weights_are_under_way) {
    // Nothing that the kernel before may write is read, and nothing it may read is written (the
    // outputs depend on the tokens), before it has ended.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (!weights_are_under_way) {
      fill_weights();
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = 0; step < kTokenStages && tokens.tile < end; ++step) {
      load_tokens();
    }
    // A step that is done makes room for weights and for tokens, of two different steps.
    Ring<kStages> done;
    CUTLASS_PRAGMA_NO_UNROLL
    while (tokens.tile < end) {
      EmptyBarrier::wait(&storage.empty[done.stage], done.phase);
      done.advance();
      if (weights.tile < end) {
        load_weights();
      }
      load_tokens();
    }
  }

 private:
  // Of the next step, whose tokens count among the bytes that complete it.
  CUTLASS_DEVICE void load_weights() {
    int const stage = weights.place.stage;
    FullBarrier::arrive_and_expect_tx(&storage.full[stage], Tile::kStepBytes);
    auto const at = Tile::place_of(params, weights.tile, work.rank);
    Element* const to = storage.operands.weights + stage * kRows * kTileK;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kChunksK; ++chunk) {
      // Read once: they must not push the tokens out of L2.
      Output::load_weights(&params.weights, &storage.full[stage],
                           cute::TMA::CacheHintSm90::EVICT_FIRST, to + chunk * kRows * kBoxColumns,
                           column(weights.step, chunk), at.row_tile * kRows);
    }
    weights.advance(work.k_count);
  }

  // Of the next step.
  CUTLASS_DEVICE void load_tokens() {
    uint64_t* const full = &storage.full[tokens.full.stage];
    Element* const to = storage.operands.tokens + tokens.place.stage * kTokens * kTileK;
    int const row = Tile::place_of(params, tokens.tile, work.rank).token_tile * kTokens;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kChunksK; ++chunk) {
      constexpr auto kHint = uint64_t(cute::TMA::CacheHintSm90::EVICT_LAST);
      if constexpr (kSharers == 1) {
        cute::SM90_TMA_LOAD::copy(&params.tokens, full, kHint, to + chunk * kTokens * kBoxColumns,
                                  column(tokens.step, chunk), row);
      } else {
        int const mine = work.rank * kTokenBox;
        cute::SM90_TMA_LOAD_MULTICAST::copy(&params.tokens, full, uint16_t((1 << kSharers) - 1),
                                            kHint, to + (chunk * kTokens + mine) * kBoxColumns,
                                            column(tokens.step, chunk), row + mine);
      }
    }
    tokens.advance(work.k_count);
  }

  CUTLASS_DEVICE int column(int step, int chunk) const {
    return (work.k_begin + step) * kTileK + chunk * kBoxColumns;
  }
};

}  // namespace swiglu::device
