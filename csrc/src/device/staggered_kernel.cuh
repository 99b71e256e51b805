// A kernel layer for tiles that two consumer warpgroups share, each with half of the rows and an
// epilogue of its own.
//
// CUTLASS's cooperative layer stores a tile with both warpgroups at once: the tensor cores wait
// while 256 threads activate and store. Here the warpgroups do not wait for each other. The second
// one starts a step along K later, so it still multiplies while the first is in its epilogue, and
// the first is back, with the next tile's operands loaded meanwhile, when the second has come to
// its own. What is left of the cooperative layer is what it is good for: both warpgroups read the
// same tile of weights, so a FLOP moves fewer bytes from L2 than in pingpong tiles of their own.
//
// Mainloop: a GatedMainloop over a cooperative CollectiveMma.
// Node: a PairMulStore for 64 rows of the accumulator.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/kernel_hardware_info.h"
#include "cutlass/pipeline/pipeline.hpp"
#include "device/raster_scheduler.hpp"

namespace swiglu::device {

template <class Mainloop_, class Node_, class EpilogueTile, int kStoreStages>
class StaggeredKernel {
 public:
  using Mainloop = Mainloop_;
  using Node = Node_;
  using TileShape = typename Mainloop::TileShape;
  using TiledMma = typename Mainloop::TiledMma;
  using ClusterShape = typename Mainloop::DispatchPolicy::ClusterShape;
  using Element = typename Mainloop::ElementA;
  using TileScheduler = RasterScheduler<ClusterShape>;
  using TileSchedulerArguments = typename TileScheduler::Arguments;
  using ProblemShape = cute::Shape<int, int, int, int>;

  static constexpr uint32_t kWarpgroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr uint32_t kConsumers = 2;
  static constexpr uint32_t MaxThreadsPerBlock = (1 + kConsumers) * kWarpgroup;
  static constexpr uint32_t MinBlocksPerMultiprocessor = 1;
  static constexpr uint32_t kProducerRegisters = 40;
  static constexpr uint32_t kConsumerRegisters = 232;
  static_assert(cute::size(TiledMma{}) == kConsumers * kWarpgroup);

  using MainloopPipeline = typename Mainloop::MainloopPipeline;

  static constexpr int kStageElements = cute::cosize_v<typename Node::SmemLayout>;

  struct SharedStorage {
    struct Pipelines : cute::aligned_struct<16, cute::_1> {
      alignas(16) typename Mainloop::PipelineStorage mainloop;
    } pipelines;
    struct Tensors : cute::aligned_struct<128, cute::_1> {
      typename Mainloop::TensorStorage mainloop;
      alignas(1024) Element out[kConsumers][kStoreStages][kStageElements];
    } tensors;
  };
  static constexpr int SharedStorageSize = sizeof(SharedStorage);

  struct Arguments {
    cutlass::gemm::GemmUniversalMode mode{};
    ProblemShape problem_shape{};  // M, 2N, K, 1
    typename Mainloop::Arguments mainloop{};
    typename Node::Arguments epilogue{};
    cutlass::KernelHardwareInfo hw_info{};
    TileSchedulerArguments scheduler{};
  };

  struct Params {
    ProblemShape problem_shape{};
    typename Mainloop::Params mainloop{};
    typename Node::Params epilogue{};
    typename TileScheduler::Params scheduler{};
  };

  static Params to_underlying_arguments(Arguments const& args, void*) {
    return {args.problem_shape,
            Mainloop::to_underlying_arguments(args.problem_shape, args.mainloop, nullptr),
            Node::to_underlying_arguments(args.problem_shape, args.epilogue, nullptr),
            TileScheduler::to_underlying_arguments(args.problem_shape, TileShape{}, ClusterShape{},
                                                   args.hw_info, args.scheduler)};
  }

  static dim3 get_block_shape() { return dim3(MaxThreadsPerBlock, 1, 1); }

  CUTLASS_DEVICE void operator()(Params const& params, char* smem) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& shared = *reinterpret_cast<SharedStorage*>(smem);
    int const warpgroup = cutlass::canonical_warp_group_idx();
    int const warp = cutlass::canonical_warp_idx_sync();
    bool const is_consumer = warpgroup > 0;
    if (warp == 0 && cute::elect_one_sync()) {
      Mainloop::prefetch_tma_descriptors(params.mainloop);
      cute::prefetch_tma_descriptor(params.epilogue.tma_out.get_tma_descriptor());
    }

    typename MainloopPipeline::Params pipeline_params;
    if (is_consumer) {
      pipeline_params.role = MainloopPipeline::ThreadCategory::Consumer;
    } else if (warp == 0) {
      pipeline_params.role = MainloopPipeline::ThreadCategory::Producer;
    }
    pipeline_params.is_leader = threadIdx.x % kWarpgroup == 0;
    pipeline_params.num_consumers = kConsumers * kWarpgroup;
    pipeline_params.num_producers = Mainloop::NumProducerThreadEvents;
    pipeline_params.transaction_bytes = params.mainloop.tma_transaction_bytes;
    MainloopPipeline pipeline(shared.pipelines.mainloop, pipeline_params, ClusterShape{});

    // The barriers must be seen by every CTA of the cluster before the first load.
    if constexpr (cute::size(ClusterShape{}) > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }

    if (is_consumer) {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, shared, warpgroup - 1, pipeline);
    } else {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (warp == 0) {
        produce(params, shared, pipeline);
      }
    }
#endif
  }

 private:
  using PipelineState = typename Mainloop::PipelineState;
  // Named barriers: one for each consumer's epilogue, and the one that makes the second start late.
  static constexpr int kLateStart = kConsumers;

  CUTLASS_DEVICE static int k_tiles(Params const& params) {
    return cute::ceil_div(cute::get<2>(params.problem_shape), cute::size<2>(TileShape{}));
  }

  CUTLASS_DEVICE static void produce(Params const& params, SharedStorage& shared,
                                     MainloopPipeline& pipeline) {
    Mainloop mainloop;
    auto const inputs = mainloop.load_init(params.problem_shape, params.mainloop);
    int const k_count = k_tiles(params);
    uint32_t const rank = cute::block_rank_in_cluster();
    PipelineState write = cutlass::make_producer_start_state<MainloopPipeline>();
    TileScheduler scheduler{params.scheduler};
    auto work = scheduler.get_current_work();
    while (work.is_valid()) {
      int k = 0;
      mainloop.load(params.mainloop, pipeline, write, inputs,
                    cute::make_coord(work.M_idx, work.N_idx, cute::_, 0), &k, k_count, 0, rank,
                    shared.tensors.mainloop);
      write.advance(k_count);
      scheduler.advance_to_next_work();
      work = scheduler.get_current_work();
    }
    mainloop.load_tail(pipeline, write);
  }

  CUTLASS_DEVICE static void consume(Params const& params, SharedStorage& shared, int consumer,
                                     MainloopPipeline& pipeline) {
    using namespace cute;
    Mainloop mainloop;
    int const thread = threadIdx.x - kWarpgroup;
    int const k_count = k_tiles(params);
    TileScheduler scheduler{params.scheduler};
    PipelineState read;
    int stores = 0;

    auto work = scheduler.get_current_work();
    bool is_first = true;
    if (consumer == 1 && work.is_valid()) {
      cutlass::arch::NamedBarrier::sync(kConsumers * kWarpgroup, kLateStart);
    }
    while (work.is_valid()) {
      TiledMma tiled_mma;
      auto accumulators = partition_fragment_C(tiled_mma, take<0, 2>(TileShape{}));
      mainloop.mma(pipeline, read, accumulators, k_count, thread, shared.tensors.mainloop,
                   params.mainloop, [&] {
                     if (is_first && consumer == 0) {
                       cutlass::arch::NamedBarrier::arrive(kConsumers * kWarpgroup, kLateStart);
                     }
                     is_first = false;
                   });
      mainloop.mma_tail(pipeline, read, k_count);
      read.advance(k_count);
      store(params, shared, consumer, work, accumulators, stores);
      scheduler.advance_to_next_work();
      work = scheduler.get_current_work();
    }
    // Shared memory must outlive the bulk stores that read it.
    if (is_storing()) {
      tma_store_wait<0>();
    }
  }

  // One warp of each consumer issues its stores.
  CUTLASS_DEVICE static bool is_storing() { return threadIdx.x % kWarpgroup < 32; }

  // A consumer's rows of a tile are blocks of 64, every second one of the tile's.
  template <class Work, class Accumulators>
  CUTLASS_DEVICE static void store(Params const& params, SharedStorage& shared, int consumer,
                                   Work const& work, Accumulators& accumulators, int& stores) {
    using namespace cute;
    constexpr int kFragment = size<0>(EpilogueTile{}) * size<1>(EpilogueTile{}) / kWarpgroup;
    constexpr int kBlocks = size<1>(Accumulators{});
    constexpr int kColumns = size<1>(TileShape{}) / size<1>(EpilogueTile{});
    static_assert(size<0>(EpilogueTile{}) == 64, "the rows of one WGMMA");
    int const thread = threadIdx.x % kWarpgroup;

    auto const own_mma = make_tiled_mma(typename TiledMma::Atom{});
    auto const copy_atom =
        make_tiled_copy_C_atom(Copy_Atom<SM90_U32x4_STSM_N, cutlass::half_t>{}, own_mma);
    auto const tiled_r2s = make_tiled_copy_S(Copy_Atom<typename Node::CopyOpR2S, Element>{}, copy_atom);
    auto fragments = recast<cutlass::Array<float, kFragment>>(
        tiled_r2s.get_slice(thread).retile_S(accumulators));

    auto [m, two_n, k, l] = params.problem_shape;
    auto const residue = make_coord(m - work.M_idx * size<0>(TileShape{}),
                                    two_n - work.N_idx * size<1>(TileShape{}));
    typename Node::SharedStorage no_storage;
    Node node(params.epilogue, no_storage);
    auto callbacks = node.make_callbacks(params.problem_shape, TileShape{},
                                         make_coord(work.M_idx, work.N_idx, _, 0), tiled_r2s,
                                         residue, thread);

    CUTLASS_PRAGMA_UNROLL
    for (int column = 0; column < kColumns; ++column) {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        int const row = block * static_cast<int>(kConsumers) + consumer;
        auto const& fragment = fragments(column, block, 0);
        callbacks.visit(fragment, 0, row, column, fragment);
        if (is_storing()) {
          tma_store_wait<kStoreStages - 1>();
        }
        cutlass::arch::NamedBarrier::sync(kWarpgroup, consumer);
        Element* const stage = shared.tensors.out[consumer][stores % kStoreStages];
        callbacks.reduce(make_tensor(make_smem_ptr(stage), Layout<Shape<_1, _1>>{}), 0, row, column,
                         false, 0);
        cutlass::arch::fence_view_async_shared();
        cutlass::arch::NamedBarrier::sync(kWarpgroup, consumer);
        if (is_storing()) {
          callbacks.tma_store(row, column, 0, true);
          tma_store_arrive();
        }
        ++stores;
      }
    }
  }
};

}  // namespace swiglu::device
