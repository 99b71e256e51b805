// The same kernel on the paper's even/odd columns and on weights interleaved in memory, to measure
// what the interleave granularity and the interleaving tensor map cost.
#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 128, 192, 2, 1>;

SWIGLU_LAUNCHER(pp_128x192_c2x1_g1_bf16_silu, PairGemm<Tile, cutlass::bfloat16_t, Silu, 1>)
SWIGLU_LAUNCHER(pp_128x192_c2x1_phys_bf16_silu,
                PairGemm<Tile, cutlass::bfloat16_t, Silu, kPhysicallyInterleaved>)

}  // namespace swiglu::device
