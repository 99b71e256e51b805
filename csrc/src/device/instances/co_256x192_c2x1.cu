#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Cooperative, 256, 192, 2, 1>;

SWIGLU_LAUNCHER(co_256x192_c2x1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
