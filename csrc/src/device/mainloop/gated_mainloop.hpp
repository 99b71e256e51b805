// The K loop of the fused kernels: CUTLASS's SM90 "TMA + WGMMA, warp-specialised" mainloop with two
// changes: the tensor map of operand B, which interleaves gate and up rows while it loads
// (weight_view.hpp), and programmatic dependent launch (see load).
//
// The kernel layers (sm90_gemm_tma_warpspecialized_{pingpong,cooperative}.hpp) call load_init,
// load, load_tail in the producer and mma, mma_tail in the consumers; what is not defined here is
// inherited. `Stock` is the CollectiveMma that CUTLASS's builder makes for the same tile.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/gemm/collective/collective_mma.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "device/mainloop/multicast.hpp"
#include "device/mainloop/weight_view.hpp"

namespace swiglu::device {

template <class Stock, int Granularity>
struct GatedMainloop : Stock {
  using typename Stock::DispatchPolicy;
  using typename Stock::ElementA;
  using typename Stock::ElementB;
  using typename Stock::GmemTiledCopyA;
  using typename Stock::GmemTiledCopyB;
  using typename Stock::InternalElementA;
  using typename Stock::InternalElementB;
  using typename Stock::MainloopPipeline;
  using typename Stock::PipelineState;
  using typename Stock::SmemLayoutA;
  using typename Stock::SmemLayoutB;
  using typename Stock::StrideA;
  using typename Stock::TensorStorage;
  using typename Stock::TiledMma;
  using typename Stock::TileShape;
  using ClusterShape = typename DispatchPolicy::ClusterShape;
  using View = WeightView<Granularity>;

  static constexpr bool kMulticastA =
      cute::is_same_v<GmemTiledCopyA, cute::SM90_TMA_LOAD_MULTICAST>;
  static constexpr bool kMulticastB =
      cute::is_same_v<GmemTiledCopyB, cute::SM90_TMA_LOAD_MULTICAST>;

  struct Arguments {
    ElementA const* ptr_x = nullptr;        // [M, K]
    int64_t x_row_stride = 0;               // elements
    ElementB const* ptr_gate_up = nullptr;  // [2N, K], gate first
    int64_t gate_up_row_stride = 0;         // elements
    bool weights_are_constant = false;      // not written by work that may still run
  };

  static auto make_tma_x(InternalElementA const* ptr, int m, int k, int l, StrideA stride) {
    auto x = cute::make_tensor(ptr, cute::make_layout(cute::make_shape(m, k, l), stride));
    return cute::make_tma_copy_A_sm90(GmemTiledCopyA{}, x,
                                      SmemLayoutA{}(cute::_, cute::_, cute::Int<0>{}), TileShape{},
                                      ClusterShape{});
  }

  static auto make_tma_gate_up(InternalElementB const* ptr, int two_n, int k, int64_t row_stride) {
    auto layout = cute::make_layout(cute::make_shape(View::rows(two_n), k, int{View::kBatches}),
                                    View::stride(row_stride, two_n));
    return cute::make_tma_copy_B_sm90(GmemTiledCopyB{}, cute::make_tensor(ptr, layout),
                                      SmemLayoutB{}(cute::_, cute::_, cute::Int<0>{}), TileShape{},
                                      ClusterShape{});
  }

  struct Params {
    using TmaX = decltype(make_tma_x(nullptr, 0, 0, 0, StrideA{}));
    using TmaGateUp = decltype(make_tma_gate_up(nullptr, 0, 0, 0));
    TmaX tma_x;
    TmaGateUp tma_gate_up;
    bool weights_are_constant = false;
    uint32_t tma_transaction_bytes = Stock::TmaTransactionBytes;  // read by the kernel layer
  };

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const& problem_shape,
                                                  Arguments const& args, void*) {
    auto [m, two_n, k, l] = cute::append<4>(problem_shape, 1);
    StrideA stride_x{};
    cute::get<0>(stride_x) = args.x_row_stride;
    return {make_tma_x(reinterpret_cast<InternalElementA const*>(args.ptr_x), m, k, l, stride_x),
            make_tma_gate_up(reinterpret_cast<InternalElementB const*>(args.ptr_gate_up), two_n, k,
                             args.gate_up_row_stride),
            args.weights_are_constant};
  }

  // Shapes, strides and pointers are checked on the host before a kernel is looked for.
  template <class ProblemShape>
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) {
    cute::prefetch_tma_descriptor(params.tma_x.get_tma_descriptor());
    cute::prefetch_tma_descriptor(params.tma_gate_up.get_tma_descriptor());
  }

  // Coordinate tensors of both operands, cut into tiles: (BLK_M, BLK_K, m, k, l), (BLK_N, BLK_K, n,
  // k, l).
  template <class ProblemShape>
  CUTLASS_DEVICE auto load_init(ProblemShape const& problem_shape, Params const& params) const {
    using namespace cute;
    auto [m, two_n, k, l] = problem_shape;
    auto x = params.tma_x.get_tma_tensor(make_shape(m, k, l));
    auto gate_up = params.tma_gate_up.get_tma_tensor(make_shape(View::rows(two_n), k, int{View::kBatches}));
    return make_tuple(
        local_tile(x, TileShape{}, make_coord(_, _, _), Step<_1, Underscore, _1>{}),
        local_tile(gate_up, TileShape{}, make_coord(_, _, _), Step<Underscore, _1, _1>{}));
  }

  // Producer warp: fill k_tile_count stages with this CTA's share of one output tile's operands. The
  // coordinate's batch is that of the weights (WeightView::kBatches); the tokens have none.
  //
  // The kernel may have been launched while the one before it on the stream still ran
  // (programmatic dependent launch), so nothing that kernel may write is read, and nothing it may
  // read is written, before griddepcontrol.wait. The tokens' first load is behind the wait, and
  // every output depends on the tokens. Weights that nothing writes need not wait.
  template <class TensorX, class TensorGateUp, class KTileIterator, class BlockCoord>
  CUTLASS_DEVICE void load(Params const& params, MainloopPipeline pipeline, PipelineState write,
                           cute::tuple<TensorX, TensorGateUp> const& inputs,
                           BlockCoord const& coord, KTileIterator k_tile, int k_tile_count, int,
                           uint32_t rank_in_cluster, TensorStorage& storage) {
    using namespace cute;
    if (!elect_one_sync()) {
      return;
    }
    constexpr uint32_t kClusterM = size<0>(ClusterShape{});
    int const cta_m = rank_in_cluster % kClusterM;
    int const cta_n = rank_in_cluster / kClusterM;
    auto [m_coord, n_coord, k_coord, l_coord] = coord;

    auto slice_x = params.tma_x.get_slice(cta_n);
    auto slice_w = params.tma_gate_up.get_slice(cta_m);
    auto from_x = slice_x.partition_S(get<0>(inputs)(_, _, m_coord, _, 0));
    auto from_w = slice_w.partition_S(get<1>(inputs)(_, _, n_coord, _, l_coord));
    auto to_x =
        slice_x.partition_D(make_tensor(make_smem_ptr(storage.smem_A.data()), SmemLayoutA{}));
    auto to_w =
        slice_w.partition_D(make_tensor(make_smem_ptr(storage.smem_B.data()), SmemLayoutB{}));
    uint16_t const mask_x = kMulticastA ? multicast_mask_a<ClusterShape>(cta_m) : 0;
    uint16_t const mask_w = kMulticastB ? multicast_mask_b<ClusterShape>(cta_n) : 0;
    auto const load_x = [&](auto const& stage, int k) {
      copy(params.tma_x.with(*pipeline.producer_get_barrier(stage), mask_x), from_x(_, _, _, k),
           to_x(_, _, _, stage.index()));
    };
    auto const load_w = [&](auto const& stage, int k) {
      copy(params.tma_gate_up.with(*pipeline.producer_get_barrier(stage), mask_w),
           from_w(_, _, _, k), to_w(_, _, _, stage.index()));
    };

    int k = *k_tile;
    int const k_end = k + k_tile_count;
    if (is_first_tile) {
      is_first_tile = false;
      // Every stage is free now: weights into all of them, then the tokens.
      int const k_early =
          params.weights_are_constant ? min(k_end, k + DispatchPolicy::Stages) : k;
      PipelineState early = write;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int i = k; i < k_early; ++i, ++early) {
        pipeline.producer_acquire(early);
        load_w(early, i);
      }
      asm volatile("griddepcontrol.wait;" ::: "memory");
      CUTLASS_PRAGMA_NO_UNROLL
      for (; k < k_early; ++k, ++write) {
        load_x(write, k);
      }
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k < k_end; ++k, ++write) {
      pipeline.producer_acquire(write);
      load_x(write, k);
      load_w(write, k);
    }
  }

  // Producer warp, after the last tile: the next kernel on the stream may start wherever a
  // multiprocessor falls idle; then stay until the stages are drained.
  CUTLASS_DEVICE void load_tail(MainloopPipeline pipeline, PipelineState write) {
    asm volatile("griddepcontrol.launch_dependents;");
    Stock::load_tail(pipeline, write);
  }

  bool is_first_tile = true;

  // Consumer warpgroup: accumulate one output tile. Leaves the last stage's WGMMAs in flight and
  // its buffer unreleased; mma_tail (inherited) waits and releases. k_tile_count >= 1.
  template <class Accumulators>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Accumulators& accumulators,
                          int k_tile_count, int thread_idx, TensorStorage& storage, Params const&) {
    using namespace cute;
    auto smem_a = make_tensor(make_smem_ptr(storage.smem_A.data()), SmemLayoutA{});
    auto smem_b = make_tensor(make_smem_ptr(storage.smem_B.data()), SmemLayoutB{});

    // The shuffle tells the compiler that the warpgroup index is uniform, which keeps the matrix
    // descriptors in uniform registers.
    constexpr int kWarpgroups = size(TiledMma{}) / cutlass::NumThreadsPerWarpGroup;
    int const warpgroup = __shfl_sync(0xffffffffu, thread_idx / cutlass::NumThreadsPerWarpGroup, 0);
    auto const first_threads =
        make_layout(Int<kWarpgroups>{}, Int<cutlass::NumThreadsPerWarpGroup>{});
    TiledMma tiled_mma;
    auto thread_mma = tiled_mma.get_slice(first_threads(warpgroup));
    auto desc_a =
        thread_mma.make_fragment_A(thread_mma.partition_A(smem_a));  // (MMA, MMA_M, MMA_K, PIPE)
    auto desc_b =
        thread_mma.make_fragment_B(thread_mma.partition_B(smem_b));  // (MMA, MMA_N, MMA_K, PIPE)

    PipelineState release = read;
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    pipeline.consumer_wait(read, pipeline.consumer_try_wait(read));
    warpgroup_fence_operand(accumulators);
    warpgroup_arrive();
    CUTLASS_PRAGMA_UNROLL
    for (int k_block = 0; k_block < size<2>(desc_a); ++k_block) {
      gemm(tiled_mma, desc_a(_, _, k_block, read.index()), desc_b(_, _, k_block, read.index()),
           accumulators);
      tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_commit_batch();
    ++read;

    CUTLASS_PRAGMA_NO_UNROLL
    for (--k_tile_count; k_tile_count > 0; --k_tile_count) {
      pipeline.consumer_wait(read, pipeline.consumer_try_wait(read));
      warpgroup_fence_operand(accumulators);
      warpgroup_arrive();
      gemm(tiled_mma, desc_a(_, _, _, read.index()), desc_b(_, _, _, read.index()), accumulators);
      warpgroup_commit_batch();
      // One batch may stay in flight: the stage before the current one is free by then.
      warpgroup_wait<1>();
      warpgroup_fence_operand(accumulators);
      pipeline.consumer_release(release);
      ++read;
      ++release;
    }
    warpgroup_fence_operand(accumulators);
  }
};

}  // namespace swiglu::device
