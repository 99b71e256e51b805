// PairMulStore: the epilogue visitor node that turns a [M, 2N] accumulator into a [M, N] output.
//
//   out[m, j] = round(act(gate[m, j]) * up[m, j])      in FP32, rounded once
//
// The accumulator's columns are gate and up interleaved by `Granularity` columns (8: eight gate
// columns, then the eight up columns of the same outputs; 1: even gate, odd up). The node is the
// root of a tree whose child is the accumulator (or nodes that scale it); the collective's own C
// and D are void. Per epilogue sub-tile:
//
//   visit       FP32 pairs -> packed 16-bit outputs in registers, half as many as came in
//   reduce      registers -> shared memory (stmatrix), into the collective's stage buffer
//   tma_store   one bulk tensor store of the EpiM x EpiN/2 tile
//
// With DelayTmaStore = false and two or more store stages, visit of sub-tile i + 1 runs while the
// bulk store of sub-tile i is in flight. The collective has stage buffers for an EpiM x EpiN tile
// of D, void or not; this node stages in their first halves and needs no shared memory of its own.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/builders/sm90_common.inl"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace swiglu::device {

// How the thread that holds accumulator columns of a gate finds the up of the same output. A
// thread's fragment comes in groups of 8 values = 16 columns x 2 rows: [0,1] row r, [2,3] row r + 8
// of the first 8 columns (two adjacent columns each), [4..7] the same of the next 8 columns.
// combine() makes of such a group the 4 outputs (2 rows x 2 adjacent columns) that this thread's
// place in an 8-column output chunk asks for.
template <int Granularity>
struct PairCombine;

// Columns 0..7 are gate, 8..15 up: both of an output sit in this thread, 4 values apart, and the
// outputs of a thread are adjacent columns already.
template <>
struct PairCombine<8> {
  template <class Element, class Activation>
  static __device__ __forceinline__ cutlass::Array<Element, 4> combine(float const* group,
                                                                       Activation act) {
    cutlass::Array<float, 4> product;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      product[i] = act(group[i]) * group[4 + i];
    }
    return cutlass::NumericArrayConverter<Element, float, 4>{}(product);
  }
};

// Even columns are gate, odd up: each thread makes outputs q (first 8 columns) and 4 + q (next 8)
// of its rows, q its place among the four threads of a row, but has to store outputs 2q and 2q + 1.
// So threads 0 and 1 collect the first-half outputs, 2 and 3 the second-half ones, by shuffles.
template <>
struct PairCombine<1> {
  template <class Element, class Activation>
  static __device__ __forceinline__ cutlass::Array<Element, 4> combine(float const* group,
                                                                       Activation act) {
    int const lane = threadIdx.x % 32;
    int const source = (lane & ~3) + 2 * (lane & 1);
    unsigned const pick = (lane & 2) ? 0x7632u : 0x5410u;
    cutlass::Array<uint32_t, 2> out;
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < 2; ++row) {
      cutlass::Array<float, 2> product;
      product[0] = act(group[2 * row]) * group[2 * row + 1];
      product[1] = act(group[4 + 2 * row]) * group[4 + 2 * row + 1];
      auto const rounded = cutlass::NumericArrayConverter<Element, float, 2>{}(product);
      uint32_t const both = reinterpret_cast<uint32_t const&>(rounded);
      uint32_t const left = __shfl_sync(0xffffffffu, both, source);
      uint32_t const right = __shfl_sync(0xffffffffu, both, source + 1);
      out[row] = __byte_perm(left, right, pick);
    }
    return reinterpret_cast<cutlass::Array<Element, 4> const&>(out);
  }
};

// EpilogueTile: Shape<EpiM, EpiN> of the [M, 2N] accumulator; EpiN a multiple of 32, so that the
// output sub-tile is a whole number of 16-column stmatrix groups.
template <class EpilogueTile, class Element, class Activation, int Granularity>
struct PairMulStore {
  using ElementAux = Element;  // gives the collective the element of its stage buffers
  using StrideOut = cute::Stride<int64_t, cute::Int<1>, int64_t>;

  static constexpr int kEpiM = cute::size<0>(EpilogueTile{});
  static constexpr int kEpiN = cute::size<1>(EpilogueTile{});
  static_assert(kEpiN % 32 == 0, "half a sub-tile must be a whole number of 16-column groups");

  using OutTile = cute::Shape<cute::Int<kEpiM>, cute::Int<kEpiN / 2>>;
  using SmemAtom =
      decltype(cutlass::epilogue::collective::detail::sm90_get_epilogue_smem_swizzle_layout_atom<
               StrideOut, Element, OutTile>());
  using SmemLayout =
      decltype(cute::tile_to_shape(SmemAtom{}, OutTile{}, cute::Step<cute::_1, cute::_2>{}));
  using CopyOpR2S =
      decltype(cutlass::epilogue::collective::detail::sm90_get_smem_store_op_for_accumulator<
               StrideOut, Element, OutTile>());

  struct SharedStorage {};

  struct Arguments {
    Element* ptr_out = nullptr;
    StrideOut stride_out{};
  };

  struct Params {
    using TmaOut = decltype(cute::make_tma_copy(
        cute::SM90_TMA_STORE{},
        cute::make_tensor(static_cast<Element*>(nullptr),
                          cute::repeat_like(StrideOut{}, int32_t(0)), StrideOut{}),
        SmemLayout{}));
    TmaOut tma_out;
  };

  // problem_shape is the GEMM's (M, 2N, K[, L]).
  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const& problem_shape,
                                                  Arguments const& args, void*) {
    auto [m, two_n, k, l] = cute::append<4>(problem_shape, 1);
    auto out = cute::make_tensor(
        args.ptr_out, cute::make_layout(cute::make_shape(m, two_n / 2, l), args.stride_out));
    return {cute::make_tma_copy(cute::SM90_TMA_STORE{}, out, SmemLayout{})};
  }

  // Shapes, strides and pointers are checked on the host before a kernel is looked for.
  template <class ProblemShape>
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*,
                                              cudaStream_t, cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE PairMulStore() {}
  CUTLASS_HOST_DEVICE PairMulStore(Params const& params, SharedStorage const&)
      : params_ptr(&params) {}

  Params const* params_ptr = nullptr;

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      cutlass::epilogue::fusion::ProducerLoadArgs<Args...> const&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  template <class TiledR2S, class RegOut, class GmemOut>
  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    TiledR2S tiled_r2s;
    RegOut reg_out;    // (R2S, R2S_M, R2S_N): this thread's outputs of one sub-tile
    GmemOut gmem_out;  // (S2G, S2G_M, S2G_N, EPI_M, EPI_N)
    Params const* params_ptr;
    int rows_left;     // of the output, from this tile's first row on
    int columns_left;  // of the accumulator, likewise
    int thread_idx;
    Element* stage = nullptr;  // where this sub-tile is staged; set by reduce

    CUTLASS_DEVICE ConsumerStoreCallbacks(TiledR2S tiled_r2s_, RegOut const& reg_out_,
                                          GmemOut const& gmem_out_, Params const* params_ptr_,
                                          int rows_left_, int columns_left_, int thread_idx_)
        : tiled_r2s(tiled_r2s_),
          reg_out(reg_out_),
          gmem_out(gmem_out_),
          params_ptr(params_ptr_),
          rows_left(rows_left_),
          columns_left(columns_left_),
          thread_idx(thread_idx_) {}

    // Does any of this sub-tile lie inside the output? Beyond the work it saves in ragged tiles,
    // it keeps the activation in a basic block of its own. Without it ptxas hoists the whole
    // tile's activations above the release of the last stage, which the producer then waits for.
    CUTLASS_DEVICE bool is_inside(int epi_m, int epi_n) const {
      return epi_m * kEpiM < rows_left && epi_n * kEpiN < columns_left;
    }

    CUTLASS_DEVICE auto smem_out() const {
      return cute::as_position_independent_swizzle_tensor(
          cute::make_tensor(cute::make_smem_ptr(stage), SmemLayout{}));
    }

    template <typename ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const&, int epi_v,
                              int epi_m, int epi_n,
                              cutlass::Array<float, FragmentSize> const& pre_activations) {
      static_assert(FragmentSize % 8 == 0, "a fragment must hold whole gate/up pairs");
      auto groups = cute::recast<cutlass::Array<Element, 4>>(cute::coalesce(reg_out));
      constexpr int kGroups = FragmentSize / 8;
      if (is_inside(epi_m, epi_n)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kGroups; ++i) {
          groups(epi_v * kGroups + i) = PairCombine<Granularity>::template combine<Element>(
              pre_activations.data() + 8 * i, Activation{});
        }
      }
      return pre_activations;  // the collective wants a fragment back; with D void nobody reads it
    }

    template <class StageTensor, class SyncFn, class VisitResults>
    CUTLASS_DEVICE void reduce(StageTensor&& stage_buffer, SyncFn const&, int, int, bool,
                               VisitResults const&) {
      stage = cute::raw_pointer_cast(&stage_buffer(cute::Int<0>{}, cute::Int<0>{}));
      auto const thread_r2s = tiled_r2s.get_slice(thread_idx);
      cute::copy(tiled_r2s, thread_r2s.retile_S(reg_out), thread_r2s.partition_D(smem_out()));
    }

    CUTLASS_DEVICE void tma_store(int epi_m, int epi_n, int, bool issue_tma_store) {
      if (issue_tma_store && is_inside(epi_m, epi_n)) {
        auto const block_s2g = params_ptr->tma_out.get_slice(cute::Int<0>{});
        cute::copy(params_ptr->tma_out, block_s2g.partition_S(smem_out()),
                   gmem_out(cute::_, cute::_, cute::_, epi_m, epi_n));
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      cutlass::epilogue::fusion::ConsumerStoreArgs<Args...> const& args) {
    using namespace cute;
    static_assert(ReferenceSrc, "the register layout is that of the accumulator");
    auto [m, two_n, k, l] = args.problem_shape_mnkl;
    auto [m_coord, n_coord, k_coord, l_coord] = args.tile_coord_mnkl;
    using TileM = decltype(size<0>(args.tile_shape_mnk));
    using TileN = decltype(size<1>(args.tile_shape_mnk));

    auto out = params_ptr->tma_out.get_tma_tensor(make_shape(m, two_n / 2, l));
    auto tile = local_tile(out, Shape<TileM, Int<TileN::value / 2>>{},
                           make_coord(m_coord, n_coord, l_coord));
    auto sub_tiles = flat_divide(tile, OutTile{});  // (EPI_M, EPI_N/2, sub-tiles along M, along N)

    auto tiled_r2s = make_tiled_copy_S(Copy_Atom<CopyOpR2S, Element>{}, args.tiled_copy);
    auto reg_layout =
        make_layout(take<0, 3>(shape(tiled_r2s.get_slice(args.thread_idx).partition_S(sub_tiles))));
    auto reg_out = make_tensor<Element>(reg_layout);
    auto gmem_out = params_ptr->tma_out.get_slice(Int<0>{}).partition_D(sub_tiles);
    return ConsumerStoreCallbacks<decltype(tiled_r2s), decltype(reg_out), decltype(gmem_out)>(
        tiled_r2s, reg_out, gmem_out, params_ptr, get<0>(args.residue_cD), get<1>(args.residue_cD),
        args.thread_idx);
  }
};

}  // namespace swiglu::device
