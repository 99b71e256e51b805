#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Cooperative, 128, 256, 2, 1>;

SWIGLU_LAUNCHER(co_128x256_c2x1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
