#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Cooperative, 256, 128, 1, 2>;

SWIGLU_LAUNCHER(co_256x128_c1x2_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
