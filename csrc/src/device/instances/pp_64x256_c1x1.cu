#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 64, 256, 1, 1>;

SWIGLU_LAUNCHER(pp_64x256_c1x1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
