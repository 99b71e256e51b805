// Kernel-2 in tiles that two warpgroups share without waiting for each other (staggered_kernel.cuh).
//
// As in pair_gemm.cuh a tile's N counts the 2N extent.
#pragma once

#include "cutlass/gemm/collective/collective_builder.hpp"
#include "device/epilogue/pair_mul_store.hpp"
#include "device/mainloop/gated_mainloop.hpp"
#include "device/pair_gemm.cuh"
#include "device/staggered_kernel.cuh"
#include "host/problem.hpp"

namespace swiglu::device {

template <class Config, class Element_, class Activation>
struct StaggeredGemm {
  using Element = Element_;
  using TileShape = typename Config::TileShape;
  using ClusterShape = typename Config::ClusterShape;
  using EpilogueTile = cute::Shape<cute::_64, cute::_64>;
  static constexpr int kAlignment = 16 / sizeof(Element);
  static_assert(cute::is_same_v<typename Config::Schedule, Cooperative>);

  using Node = PairMulStore<EpilogueTile, Element, Activation, 8>;
  static constexpr int kStoreBytes =
      2 * Config::kStoreStages * cute::cosize_v<typename Node::SmemLayout> * sizeof(Element);

  using StockMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor,
      kAlignment, Element, cutlass::layout::ColumnMajor, kAlignment, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<kStoreBytes + 1024>,
      typename Config::Schedule::Mainloop>::CollectiveOp;
  using Mainloop = GatedMainloop<StockMainloop, 8>;
  using Kernel = StaggeredKernel<Mainloop, Node, EpilogueTile, Config::kStoreStages>;

  static typename Node::Arguments epilogue_arguments(Problem const& problem) {
    return {static_cast<Element*>(problem.out), {problem.out_row_stride, {}, 0}};
  }

  static auto const& out_map(typename Kernel::Params const& params) {
    return params.epilogue.tma_out;
  }
};

}  // namespace swiglu::device
