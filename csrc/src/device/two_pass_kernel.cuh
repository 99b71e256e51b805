// Kernel-1: the kernel layer that computes an output tile in two passes over K, first the gate and
// then the up projection, with both operands' weights taken from the same resident [gate; up].
//
// Warp-specialised pingpong: one producer warp, two consumer warpgroups with an output tile each. A
// consumer
//
//   accumulates the gate tile over all of K           tensor cores
//   activates it in registers and packs it to 16 bits MUFU, while the up tile's loads are in flight
//   accumulates the up tile over all of K             tensor cores
//   multiplies, stores
//
// The tensor cores belong to one warpgroup at a time, by an ordered barrier. When it changes hands
// is the Handover:
//
//   Hold     after the up pass. The activation leaves the tensor cores idle.
//   Release  after each pass: the other warpgroup's pass runs under the activation. Tiles then go in
//            pairs, and the producer loads in the order in which they are consumed: gate of the
//            first, gate of the second, up of the first, up of the second. The last tile of an odd
//            number has no second: its warpgroup keeps the tensor cores, since nobody would hand
//            them back.
//
// One chain of turns is enough for both passes; two would let a warpgroup run a round ahead of the
// barrier's parity. Epilogues have a chain of their own, which also guards their shared memory.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/kernel_hardware_info.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/pipeline/pipeline.hpp"
#include "device/raster_scheduler.hpp"

namespace swiglu::device {

enum class Handover { Hold, Release };

// Mainloop: a GatedMainloop over WeightView<kGateThenUp>, tile N counted in output columns.
// Epilogue: CUTLASS's collective that stores the accumulators, rounded, as D.
template <class Mainloop_, class Epilogue_, class Activation, Handover kHandover>
class TwoPassKernel {
 public:
  using Mainloop = Mainloop_;
  using Epilogue = Epilogue_;
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
  // 2 * 232 + 40 times 128 threads are 98 % of the register file.
  static constexpr uint32_t kProducerRegisters = 40;
  static constexpr uint32_t kConsumerRegisters = 232;
  static_assert(cute::size(TiledMma{}) == kWarpgroup, "a tile must belong to one warpgroup");

  using MainloopPipeline = typename Mainloop::MainloopPipeline;
  using Turns = cutlass::OrderedSequenceBarrier<1, kConsumers>;

  struct SharedStorage {
    struct Pipelines : cute::aligned_struct<16, cute::_1> {
      alignas(16) typename Mainloop::PipelineStorage mainloop;
      alignas(16) typename Epilogue::PipelineStorage epilogue;
      alignas(16) typename Turns::SharedStorage mma_turns;
      alignas(16) typename Turns::SharedStorage epilogue_turns;
    } pipelines;
    struct Tensors : cute::aligned_struct<128, cute::_1> {
      typename Epilogue::TensorStorage epilogue;
      typename Mainloop::TensorStorage mainloop;
    } tensors;
  };
  static constexpr int SharedStorageSize = sizeof(SharedStorage);

  struct Arguments {
    cutlass::gemm::GemmUniversalMode mode{};
    ProblemShape problem_shape{};  // M, 2N, K, 1
    typename Mainloop::Arguments mainloop{};
    typename Epilogue::Arguments epilogue{};
    cutlass::KernelHardwareInfo hw_info{};
    TileSchedulerArguments scheduler{};
  };

  struct Params {
    ProblemShape problem_shape{};  // M, 2N, K, 1
    typename Mainloop::Params mainloop{};
    typename Epilogue::Params epilogue{};
    typename TileScheduler::Params scheduler{};
  };

  static Params to_underlying_arguments(Arguments const& args, void*) {
    auto [m, two_n, k, l] = args.problem_shape;
    auto const out_shape = cute::make_shape(m, two_n / 2, k, l);
    return {args.problem_shape,
            Mainloop::to_underlying_arguments(args.problem_shape, args.mainloop, nullptr),
            Epilogue::to_underlying_arguments(out_shape, args.epilogue, nullptr),
            TileScheduler::to_underlying_arguments(out_shape, TileShape{}, ClusterShape{},
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
      Epilogue::prefetch_tma_descriptors(params.epilogue);
    }

    typename MainloopPipeline::Params pipeline_params;
    if (is_consumer) {
      pipeline_params.role = MainloopPipeline::ThreadCategory::Consumer;
    } else if (warp == 0) {
      pipeline_params.role = MainloopPipeline::ThreadCategory::Producer;
    }
    pipeline_params.is_leader = threadIdx.x % kWarpgroup == 0;
    pipeline_params.num_consumers = kWarpgroup;
    pipeline_params.num_producers = Mainloop::NumProducerThreadEvents;
    pipeline_params.transaction_bytes = params.mainloop.tma_transaction_bytes;
    MainloopPipeline pipeline(shared.pipelines.mainloop, pipeline_params, ClusterShape{});

    typename Turns::Params turns_params;
    turns_params.group_id = warpgroup - 1;
    turns_params.group_size = kWarpgroup;
    Turns mma_turns(shared.pipelines.mma_turns, turns_params);
    Turns epilogue_turns(shared.pipelines.epilogue_turns, turns_params);
    EpilogueStore store(shared.pipelines.epilogue);

    // The barriers must be seen by every CTA of the cluster before the first load.
    if constexpr (cute::size(ClusterShape{}) > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }

    if (is_consumer) {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, shared, warpgroup - 1, pipeline, mma_turns, epilogue_turns, store);
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
  static constexpr bool kRelease = kHandover == Handover::Release;

  // The halves of [gate; up], which is how the mainloop counts its batch mode.
  static constexpr int kGate = 0;
  static constexpr int kUp = 1;

  // What the epilogue collective wants besides the tile: a pipeline for a source that is not there,
  // and one for the bulk stores.
  struct EpilogueStore {
    using LoadPipeline = typename Epilogue::LoadPipeline;
    using StorePipeline = typename Epilogue::StorePipeline;
    LoadPipeline load;
    StorePipeline store;
    typename Epilogue::LoadPipelineState load_state;
    cutlass::PipelineState<Epilogue::StorePipeline::Stages> store_state =
        cutlass::make_producer_start_state<StorePipeline>();

    CUTLASS_DEVICE explicit EpilogueStore(typename Epilogue::PipelineStorage& storage)
        : load(storage, load_params()), store(store_params()) {}

    CUTLASS_DEVICE static typename LoadPipeline::Params load_params() {
      typename LoadPipeline::Params params;
      params.role = LoadPipeline::ThreadCategory::NonParticipant;
      params.dst_blockid = cute::block_rank_in_cluster();
      params.producer_arv_count = cutlass::NumThreadsPerWarp;
      params.consumer_arv_count = kWarpgroup;
      return params;
    }

    CUTLASS_DEVICE static typename StorePipeline::Params store_params() {
      typename StorePipeline::Params params;
      params.always_wait = true;
      return params;
    }
  };

  template <class Work>
  CUTLASS_DEVICE static auto coord_of(Work const& work, int half) {
    return cute::make_coord(work.M_idx, work.N_idx, cute::_, half);
  }

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
    auto const load = [&](auto const& work, int half) {
      int k = 0;
      mainloop.load(params.mainloop, pipeline, write, inputs, coord_of(work, half), &k, k_count, 0,
                    rank, shared.tensors.mainloop);
      write.advance(k_count);
    };

    TileScheduler scheduler{params.scheduler};
    auto first = scheduler.get_current_work();
    while (first.is_valid()) {
      scheduler.advance_to_next_work();
      auto const second = scheduler.get_current_work();
      bool const is_paired = kRelease && second.is_valid();
      load(first, kGate);
      if (is_paired) {
        load(second, kGate);
      }
      load(first, kUp);
      if (is_paired) {
        load(second, kUp);
        scheduler.advance_to_next_work();
      }
      first = is_paired ? scheduler.get_current_work() : second;
    }
    mainloop.load_tail(pipeline, write);
  }

  CUTLASS_DEVICE static void consume(Params const& params, SharedStorage& shared, int consumer,
                                     MainloopPipeline& pipeline, Turns& mma_turns,
                                     Turns& epilogue_turns, EpilogueStore& store) {
    using namespace cute;
    Mainloop mainloop;
    Epilogue epilogue(params.epilogue, shared.tensors.epilogue);
    auto [m, two_n, k, l] = params.problem_shape;
    auto const out_shape = make_shape(m, two_n / 2, k, l);
    int const thread = threadIdx.x % kWarpgroup;
    int const k_count = k_tiles(params);
    constexpr int kStores = Epilogue::get_store_pipe_increment(TileShape{});

    TileScheduler scheduler{params.scheduler};
    PipelineState read;
    if (consumer == 1) {
      scheduler.advance_to_next_work();
      read.advance(kRelease ? k_count : 2 * k_count);
      store.store_state.advance(kStores);
    }
    auto const pass = [&](auto& accumulators) {
      mainloop.mma(pipeline, read, accumulators, k_count, thread, shared.tensors.mainloop,
                   params.mainloop);
    };
    auto const finish = [&] { mainloop.mma_tail(pipeline, read, k_count); };

    auto work = scheduler.get_current_work();
    while (work.is_valid()) {
      // The second consumer's partner is the tile before, so it always has one.
      scheduler.advance_to_next_work();
      bool const is_paired =
          kRelease && (consumer == 1 || scheduler.get_current_work().is_valid());
      bool const is_inside = work.M_idx * size<0>(TileShape{}) < m &&
                             work.N_idx * size<1>(TileShape{}) < two_n / 2;

      TiledMma tiled_mma;
      auto accumulators = partition_fragment_C(tiled_mma, take<0, 2>(TileShape{}));
      cutlass::Array<uint32_t, size(accumulators) / 2> gate;

      mma_turns.wait();
      pass(accumulators);
      if (is_paired) {
        mma_turns.arrive();
      }
      finish();
      read.advance(is_paired ? 2 * k_count : k_count);
      // A run-time condition, always true but in the padding of a cluster: without it ptxas moves
      // the release of the last stage behind the activation, and the producer waits for it.
      if (is_inside) {
        activate(accumulators, gate);
      } else {
        gate.fill(0);
      }

      if (is_paired) {
        mma_turns.wait();
      }
      pass(accumulators);
      if (is_paired || !kRelease) {
        mma_turns.arrive();
      }
      finish();
      read.advance(kRelease ? 2 * k_count : 3 * k_count);
      multiply(accumulators, gate);

      epilogue_turns.wait();
      auto [load_state, store_state] = epilogue.store(
          store.load, store.load_state, store.store, store.store_state, out_shape, TileShape{},
          make_coord(work.M_idx, work.N_idx, _, 0), accumulators, tiled_mma, thread,
          shared.tensors.epilogue);
      auto [load_end, store_end] =
          epilogue.store_tail(store.load, load_state, store.store, store_state);
      store.load_state = load_end;
      store.store_state = store_end;
      store.store_state.advance(kStores);
      epilogue_turns.arrive();

      scheduler.advance_to_next_work();
      work = scheduler.get_current_work();
    }
  }

  // FP32 sums to activated gates in 16 bits: as FP32 beside the up tile's accumulators they would
  // not fit into registers.
  template <class Accumulators, class Gate>
  CUTLASS_DEVICE static void activate(Accumulators const& accumulators, Gate& gate) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Gate::kElements; ++i) {
      cutlass::Array<float, 2> pair;
      pair[0] = Activation{}(accumulators(2 * i));
      pair[1] = Activation{}(accumulators(2 * i + 1));
      auto const packed = cutlass::NumericArrayConverter<Element, float, 2>{}(pair);
      gate[i] = reinterpret_cast<uint32_t const&>(packed);
    }
  }

  template <class Accumulators, class Gate>
  CUTLASS_DEVICE static void multiply(Accumulators& accumulators, Gate const& gate) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Gate::kElements; ++i) {
      auto const& packed = reinterpret_cast<cutlass::Array<Element, 2> const&>(gate[i]);
      auto const pair = cutlass::NumericArrayConverter<float, Element, 2>{}(packed);
      accumulators(2 * i) *= pair[0];
      accumulators(2 * i + 1) *= pair[1];
    }
  }
};

}  // namespace swiglu::device
