#include "device/gemm_runner.cuh"

namespace swiglu::device {

using Wide = TileConfig<Cooperative, 128, 256, 2, 1>;
using Tall = TileConfig<Cooperative, 256, 128, 1, 2>;

SWIGLU_LAUNCHER(co_128x256_c2x1_bf16_silu, PairGemm<Wide, cutlass::bfloat16_t, Silu>)
SWIGLU_LAUNCHER(co_256x128_c1x2_bf16_silu, PairGemm<Tall, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
