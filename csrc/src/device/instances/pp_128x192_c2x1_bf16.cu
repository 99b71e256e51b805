#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 128, 192, 2, 1>;

SWIGLU_LAUNCHER(pp_128x192_c2x1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu>)
SWIGLU_LAUNCHER(pp_128x192_c2x1_bf16_gelu, PairGemm<Tile, cutlass::bfloat16_t, GeluTanh>)
SWIGLU_LAUNCHER(pp_128x192_c2x1_bf16_relu, PairGemm<Tile, cutlass::bfloat16_t, Relu>)

}  // namespace swiglu::device
