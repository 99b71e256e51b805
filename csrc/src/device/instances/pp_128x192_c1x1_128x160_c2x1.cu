#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile192 = TileConfig<Pingpong, 128, 192, 1, 1>;
// Five sub-tiles of 32 columns: 160 has no divisor 64.
using Tile160 = TileConfig<Pingpong, 128, 160, 2, 1, 64, cute::Shape<cute::_64, cute::_32>>;

SWIGLU_LAUNCHER(pp_128x192_c1x1_bf16_silu, PairGemm<Tile192, cutlass::bfloat16_t, Silu>)
SWIGLU_LAUNCHER(pp_128x160_c2x1_bf16_silu, PairGemm<Tile160, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
