// Kernel-1 assembled: two passes over K for each tile of the output, gate first (two_pass_kernel.cuh).
//
// Here a tile's N counts output columns: a 128x128 tile makes 128x128 outputs.
#pragma once

#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "device/mainloop/gated_mainloop.hpp"
#include "device/pair_gemm.cuh"
#include "device/two_pass_kernel.cuh"
#include "host/problem.hpp"

namespace swiglu::device {

template <class Config, class Element_, class Activation, Handover kHandover>
struct TwoPassGemm {
  using Element = Element_;
  using TileShape = typename Config::TileShape;
  using ClusterShape = typename Config::ClusterShape;
  using EpilogueTile = typename Config::EpilogueTile;
  static constexpr int kAlignment = 16 / sizeof(Element);
  static_assert(cute::is_same_v<typename Config::Schedule, Pingpong>);

  // The accumulators are the outputs by the time they get here.
  static constexpr int kFragment = cute::size<0>(EpilogueTile{}) * cute::size<1>(EpilogueTile{}) /
                                   Config::Schedule::kEpilogueThreads;
  using Epilogue = typename cutlass::epilogue::collective::detail::Sm90TmaBuilderImpl<
      TileShape, EpilogueTile, float, float, void, cutlass::layout::RowMajor, kAlignment, Element,
      cutlass::layout::RowMajor, kAlignment, cutlass::epilogue::fusion::Sm90AccFetch,
      cutlass::epilogue::Sm90TmaWarpSpecialized<1, Config::kStoreStages, kFragment, false,
                                                false>>::CollectiveOp;

  using StockMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor,
      kAlignment, Element, cutlass::layout::ColumnMajor, kAlignment, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      typename Config::Schedule::Mainloop>::CollectiveOp;
  using Mainloop = GatedMainloop<StockMainloop, kGateThenUp>;
  using Kernel = TwoPassKernel<Mainloop, Epilogue, Activation, kHandover>;

  static typename Epilogue::Arguments epilogue_arguments(Problem const& problem) {
    typename Epilogue::Arguments arguments{};
    arguments.ptr_D = static_cast<Element*>(problem.out);
    arguments.dD = {problem.out_row_stride, {}, 0};
    return arguments;
  }

  static auto const& out_map(typename Kernel::Params const& params) {
    return params.epilogue.tma_store_d;
  }
};

}  // namespace swiglu::device
