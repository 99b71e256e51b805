#include "device/gemm_runner.cuh"
#include "device/two_pass_gemm.cuh"

namespace swiglu::device {

using Tile = TileConfig<Pingpong, 128, 128, 2, 1>;

SWIGLU_LAUNCHER(k1_128x128_c2x1_bf16_silu,
                TwoPassGemm<Tile, cutlass::bfloat16_t, Silu, Handover::Release>)
SWIGLU_LAUNCHER(k1_128x128_c2x1_hold_bf16_silu,
                TwoPassGemm<Tile, cutlass::bfloat16_t, Silu, Handover::Hold>)

}  // namespace swiglu::device
