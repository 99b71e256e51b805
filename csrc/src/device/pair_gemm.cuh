// Kernel-2 assembled: one GEMM over [M, 2N, K] whose epilogue is PairMulStore.
//
// In this file's GEMM: M = tokens, N = intermediate_size (the GEMM's own N extent is 2N, gate and
// up interleaved), K = hidden_size. A tile's N is counted in the 2N extent as well: a 128x192 tile
// makes a 128x96 tile of the output.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "device/epilogue/activation.hpp"
#include "device/epilogue/pair_mul_store.hpp"
#include "device/mainloop/gated_mainloop.hpp"
#include "device/raster_scheduler.hpp"
#include "host/problem.hpp"

namespace swiglu::device {

struct Pingpong {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  static constexpr int kEpilogueThreads = 128;
};

struct Cooperative {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  static constexpr int kEpilogueThreads = 256;
};

// The accumulator's sub-tile per epilogue step. 64 columns give 64-byte rows of output (two whole
// sectors); the rows are what one pass of the consumer warpgroups covers.
template <class Schedule>
using DefaultEpilogueTile = cute::Shape<cute::Int<Schedule::kEpilogueThreads / 2>, cute::_64>;

// TileK 64 makes rows of 128 bytes, one row of the widest shared memory swizzle.
template <class Schedule_, int TileM, int TileN, int ClusterM, int ClusterN, int TileK = 64,
          class EpilogueTile_ = DefaultEpilogueTile<Schedule_>, int StoreStages = 2>
struct TileConfig {
  using Schedule = Schedule_;
  using TileShape = cute::Shape<cute::Int<TileM>, cute::Int<TileN>, cute::Int<TileK>>;
  using ClusterShape = cute::Shape<cute::Int<ClusterM>, cute::Int<ClusterN>, cute::_1>;
  using EpilogueTile = EpilogueTile_;
  static constexpr int kStoreStages = StoreStages;
};

template <class Config, class Element_, class Activation, int Granularity = 8>
struct PairGemm {
  using Element = Element_;
  using Schedule = typename Config::Schedule;
  using TileShape = typename Config::TileShape;
  using ClusterShape = typename Config::ClusterShape;
  using EpilogueTile = typename Config::EpilogueTile;
  static constexpr int kAlignment = 16 / sizeof(Element);

  using Node = PairMulStore<EpilogueTile, Element, Activation, Granularity == 1 ? 1 : 8>;
  using Tree = cutlass::epilogue::fusion::Sm90EVT<Node, cutlass::epilogue::fusion::Sm90AccFetch>;

  // By hand, since the builder turns DelayTmaStore on where C is void: that issues the store of a
  // sub-tile only after the next one's activation, which is the overlap this kernel is about.
  static constexpr int kFragment =
      cute::size<0>(EpilogueTile{}) * cute::size<1>(EpilogueTile{}) / Schedule::kEpilogueThreads;
  static constexpr bool kReuseSmemC = false;
  static constexpr bool kDelayTmaStore = false;
  using EpiloguePolicy =
      cutlass::epilogue::Sm90TmaWarpSpecialized<1, Config::kStoreStages, kFragment, kReuseSmemC,
                                                kDelayTmaStore>;
  using Epilogue = typename cutlass::epilogue::collective::detail::Sm90TmaBuilderImpl<
      TileShape, EpilogueTile, float, float, void, cutlass::layout::RowMajor, kAlignment, void,
      cutlass::layout::RowMajor, kAlignment, Tree, EpiloguePolicy>::CollectiveOp;

  using StockMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor,
      kAlignment, Element, cutlass::layout::ColumnMajor, kAlignment, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      typename Schedule::Mainloop>::CollectiveOp;
  using Mainloop = GatedMainloop<StockMainloop, Granularity>;

  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, GroupedRaster>;

  static typename Epilogue::Arguments epilogue_arguments(Problem const& problem) {
    typename Epilogue::Arguments arguments{};
    arguments.thread = {{}, {static_cast<Element*>(problem.out), {problem.out_row_stride, {}, 0}}};
    return arguments;
  }

  static auto const& out_map(typename Kernel::Params const& params) {
    return params.epilogue.thread.op_1.tma_out;
  }
};

}  // namespace swiglu::device
