#include "device/gemm_runner.cuh"
#include "device/two_pass_gemm.cuh"

namespace swiglu::device {

using Wide = TileConfig<Pingpong, 64, 256, 2, 1>;
using Square = TileConfig<Pingpong, 128, 128, 1, 2>;

SWIGLU_LAUNCHER(k1_64x256_c2x1_bf16_silu,
                TwoPassGemm<Wide, cutlass::bfloat16_t, Silu, Handover::Release>)
SWIGLU_LAUNCHER(k1_128x128_c1x2_bf16_silu,
                TwoPassGemm<Square, cutlass::bfloat16_t, Silu, Handover::Release>)

}  // namespace swiglu::device
