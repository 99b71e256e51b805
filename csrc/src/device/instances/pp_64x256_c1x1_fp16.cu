#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 64, 256, 1, 1>;

SWIGLU_LAUNCHER(pp_64x256_c1x1_fp16_silu, PairGemm<Tile, cutlass::half_t, Silu>)
SWIGLU_LAUNCHER(pp_64x256_c1x1_fp16_gelu, PairGemm<Tile, cutlass::half_t, GeluTanh>)
SWIGLU_LAUNCHER(pp_64x256_c1x1_fp16_relu, PairGemm<Tile, cutlass::half_t, Relu>)

}  // namespace swiglu::device
