#include "device/gemm_runner.cuh"
#include "device/staggered_gemm.cuh"

namespace swiglu::device {

using TileM = TileConfig<Cooperative, 256, 192, 2, 1>;
using TileN = TileConfig<Cooperative, 256, 192, 1, 2>;

SWIGLU_LAUNCHER(st_256x192_c2x1_bf16_silu, StaggeredGemm<TileM, cutlass::bfloat16_t, Silu>)
SWIGLU_LAUNCHER(st_256x192_c1x2_bf16_silu, StaggeredGemm<TileN, cutlass::bfloat16_t, Silu>)

}  // namespace swiglu::device
