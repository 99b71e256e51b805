#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 128, 192, 1, 2>;

SWIGLU_LAUNCHER(pp_128x192_c1x2_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
