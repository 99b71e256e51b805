#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 128, 192, 2, 1>;

SWIGLU_LAUNCHER(pp_128x192_c2x1_fp16_silu, PairGemm<Tile, cutlass::half_t, Silu>)
SWIGLU_LAUNCHER(pp_128x192_c2x1_fp16_gelu, PairGemm<Tile, cutlass::half_t, GeluTanh>)
SWIGLU_LAUNCHER(pp_128x192_c2x1_fp16_relu, PairGemm<Tile, cutlass::half_t, Relu>)

}  // namespace swiglu::device
