// The one thread of a small-M CTA that fills its stages.
#pragma once

#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/cutlass.h"
#include "device/epilogue/small_m_output.hpp"

namespace swiglu::device {

template <class Tile>
struct SmallMLoader {
  using Output = typename Tile::Output;
  using Element = typename Tile::Element;
  using FullBarrier = typename Tile::FullBarrier;
  using EmptyBarrier = typename Tile::EmptyBarrier;
  static constexpr int kStages = Tile::kStages;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kRows = Tile::kRows;
  static constexpr int kTileK = Tile::kTileK;
  static constexpr int kChunksK = Tile::kChunksK;
  static constexpr int kSharers = Tile::kSharers;
  static constexpr int kTokenBox = Tile::kTokenBox;

  typename Tile::Params const& params;
  typename Tile::SharedStorage& storage;
  typename Tile::Work work;

  // The weights of the first stages, all of which are free, without their tokens, and those of the
  // next steps as far as L2: memory would stand still once the stages are full, until the launch
  // before has ended and the tokens have come.
  CUTLASS_DEVICE void fill_weights() {
    int const early = work.early_steps();
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = 0; step < early; ++step) {
      FullBarrier::arrive_and_expect_tx(&storage.full[step], Tile::kStageBytes);
      load_weights(step, step);
    }
    int const ahead = early + Tile::kStepsAhead;
    int const end = ahead < work.k_count ? ahead : work.k_count;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = early; step < end; ++step) {
      prefetch_weights(step);
    }
  }

  CUTLASS_DEVICE void run(bool weights_are_under_way) {
    // Nothing that the kernel before may write is read, and nothing it may read is written (the
    // outputs depend on the tokens), before it has ended.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int step = 0;
    if (weights_are_under_way) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; step < work.early_steps(); ++step) {
        load_tokens(step, step);
      }
    }
    int stage = step == kStages ? 0 : step;
    uint32_t phase = step == kStages ? 0 : 1;  // of the emptying that is waited for
    CUTLASS_PRAGMA_NO_UNROLL
    for (; step < work.k_count; ++step) {
      EmptyBarrier::wait(&storage.empty[stage], phase);
      FullBarrier::arrive_and_expect_tx(&storage.full[stage], Tile::kStageBytes);
      load_weights(stage, step);
      load_tokens(stage, step);
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }

  CUTLASS_DEVICE void load_weights(int stage, int step) {
    Element* const to = storage.operands.weights + stage * kRows * kTileK;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kChunksK; ++chunk) {
      // Read once: they must not push the tokens out of L2.
      Output::load_weights(&params.weights, &storage.full[stage],
                           cute::TMA::CacheHintSm90::EVICT_FIRST, to + chunk * kRows * kBoxColumns,
                           column(step, chunk), work.row_tile * kRows);
    }
  }

  CUTLASS_DEVICE void prefetch_weights(int step) {
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kChunksK; ++chunk) {
      Output::prefetch_weights(&params.weights, column(step, chunk), work.row_tile * kRows);
    }
  }

  CUTLASS_DEVICE void load_tokens(int stage, int step) {
    Element* const to = storage.operands.tokens + stage * kTokens * kTileK;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kChunksK; ++chunk) {
      constexpr auto kHint = uint64_t(cute::TMA::CacheHintSm90::EVICT_LAST);
      int const row = work.token_tile * kTokens;
      if constexpr (kSharers == 1) {
        cute::SM90_TMA_LOAD::copy(&params.tokens, &storage.full[stage], kHint,
                                  to + chunk * kTokens * kBoxColumns, column(step, chunk), row);
      } else {
        int const mine = work.rank * kTokenBox;
        cute::SM90_TMA_LOAD_MULTICAST::copy(
            &params.tokens, &storage.full[stage], uint16_t((1 << kSharers) - 1), kHint,
            to + (chunk * kTokens + mine) * kBoxColumns, column(step, chunk), row + mine);
      }
    }
  }

  CUTLASS_DEVICE int column(int step, int chunk) const {
    int const there = work.k_first + step;
    int const turned = there < work.k_count ? there : there - work.k_count;
    return (work.k_begin + turned) * kTileK + chunk * kBoxColumns;
  }
};

}  // namespace swiglu::device
