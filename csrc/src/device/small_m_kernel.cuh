// The kernel for few tokens: weights as the M operand of WGMMA, tokens as the N operand.
//
// With so few tokens the product is a read of the weights, and what counts is how many of their
// bytes are under way. So a CTA owns 64 to 256 weight rows and walks along K through a deep ring of
// stages, several CTAs share a multiprocessor, and nothing is persistent: a CTA whose predecessor
// ended starts loading at once, also across launches. The K loop may be split over the CTAs of a
// cluster, which add their partial sums through distributed shared memory in the order of their
// ranks: the same bits every time.
//
// In this file: M = tokens, N = outputs (intermediate_size, or hidden_size of the down projection),
// K = what is summed over. A row is one of the weights': two for an output of the gate/up product
// (small_m_output.hpp), one otherwise.
//
// A CTA is one warp that loads and, behind it in time, kWarpgroups warpgroups with 64 rows each.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/cutlass.h"
#include "device/epilogue/small_m_store.hpp"
#include "device/mainloop/small_m_loader.hpp"
#include "device/small_m_tile.hpp"

namespace swiglu::device {

template <class Config, class Element_, class Output_>
struct SmallMKernel : SmallMTile<Config, Element_, Output_> {
  using Tile = SmallMTile<Config, Element_, Output_>;
  using Store = SmallMStore<Tile>;
  using Tile::kClusterSize;
  using Tile::kConsumers;
  using Tile::kSharers;
  using Tile::kSplits;
  using Tile::kStages;
  using typename Tile::EmptyBarrier;
  using typename Tile::FullBarrier;
  using typename Tile::Params;
  using typename Tile::SharedStorage;
  using typename Tile::SmemTokens;
  using typename Tile::SmemWeights;
  using typename Tile::TiledMma;
  using typename Tile::Work;

  CUTLASS_DEVICE void operator()(Params const& params, char* smem) {
    auto& storage = *reinterpret_cast<SharedStorage*>(smem);
    Work const work = Tile::work_of(params);
    SmallMLoader<Tile> loader{params, storage, work};
    bool const is_loader = threadIdx.x == kConsumers;
    if (is_loader) {
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < kStages; ++stage) {
        FullBarrier::init(&storage.full[stage], 1);
        EmptyBarrier::init(&storage.empty[stage], kSharers * kConsumers / 32);
      }
      cutlass::arch::fence_barrier_init();
      if (params.weights_are_constant) {
        loader.fill_weights();
      }
      // The next kernel on the stream may take every place that falls free from here on. It waits
      // for the end of this one before it reads or writes what this one might touch.
      asm volatile("griddepcontrol.launch_dependents;");
    }
    if constexpr (kSharers == 1) {
      __syncthreads();
    } else {
      // The other CTAs' barriers must be there before tokens are sent to them.
      __syncwarp();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }

    auto accumulators = cute::partition_fragment_C(
        TiledMma{}, cute::Shape<typename Tile::RowTile, typename Tile::TokenTile>{});
    if (threadIdx.x >= kConsumers) {
      if (is_loader) {
        loader.run(params.weights_are_constant);
      }
      __syncwarp();
    } else {
      accumulate(storage, work.k_count, accumulators);
      // Every consumer is done with the stages, so the partial sums may take their place.
      cutlass::arch::NamedBarrier::sync(kConsumers, 0);
      Store::keep_partial(storage.partial, accumulators);
    }
    if constexpr (kSplits > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    }
    if (threadIdx.x < kConsumers) {
      if constexpr (kSplits == 1) {
        cutlass::arch::NamedBarrier::sync(kConsumers, 0);
      }
      Store::store(params, storage, work);
    }
    if constexpr (kClusterSize > 1) {
      // Shared memory must live until the other CTAs have read it and signalled to it.
      cute::cluster_arrive();
      cute::cluster_wait();
    }
  }

 private:
  // Consumer warpgroups: sums over this CTA's share of K; zeros where it has none.
  template <class Accumulators>
  CUTLASS_DEVICE static void accumulate(SharedStorage& storage, int k_count,
                                        Accumulators& accumulators) {
    using namespace cute;
    // The shuffle tells the compiler that the warpgroup is uniform, which keeps the matrix
    // descriptors in uniform registers.
    int const warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    TiledMma tiled_mma;
    auto const thread_mma = tiled_mma.get_slice(warpgroup * 128);
    auto const weights = thread_mma.make_fragment_A(thread_mma.partition_A(
        make_tensor(make_smem_ptr(storage.operands.weights), SmemWeights{})));
    auto const tokens = thread_mma.make_fragment_B(
        thread_mma.partition_B(make_tensor(make_smem_ptr(storage.operands.tokens), SmemTokens{})));
    uint32_t const lane = threadIdx.x % 32;

    clear(accumulators);
    tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    int stage = 0;
    int before = 0;
    uint32_t phase = 0;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int step = 0; step < k_count; ++step) {
      FullBarrier::wait(&storage.full[stage], phase);
      warpgroup_fence_operand(accumulators);
      warpgroup_arrive();
      gemm(tiled_mma, weights(_, _, _, stage), tokens(_, _, _, stage), accumulators);
      warpgroup_commit_batch();
      // One batch may stay in flight: the stage before the current one is free by then.
      warpgroup_wait<1>();
      warpgroup_fence_operand(accumulators);
      if (step > 0 && lane < kSharers) {
        release(&storage.empty[before], lane);
      }
      before = stage;
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(accumulators);
  }

  // To every CTA that sends tokens into the stage; one lane each.
  CUTLASS_DEVICE static void release(uint64_t* empty, uint32_t lane) {
    if constexpr (kSharers == 1) {
      EmptyBarrier::arrive(empty);
    } else {
      EmptyBarrier::arrive(empty, lane, 1);
    }
  }
};

}  // namespace swiglu::device
