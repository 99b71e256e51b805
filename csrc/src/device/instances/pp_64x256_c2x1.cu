#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 64, 256, 2, 1>;

SWIGLU_LAUNCHER(pp_64x256_c2x1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
