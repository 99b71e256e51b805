"""The kernel configurations by name: pytest wants them before a library is loaded."""

CONFIG_NAMES = [
    "pp_128x192_c2x1",
    "pp_128x192_c1x1",
    "pp_128x160_c2x1",
    "pp_64x256_c1x1",
    "co_128x256_c2x1",
    "co_256x128_c1x2",
    "co_256x192_c2x1",
    "co_256x192_c1x2",
    "pp_128x192_c2x1_g1",
    "pp_128x192_c2x1_phys",
    "k1_128x128_c2x1",
    "k1_128x128_c1x2",
    "k1_64x256_c2x1",
    "k1_128x128_c2x1_hold",
]
SMALL_M_NAMES = [
    "sm_16x64_k128_s3_p1_c1_t0",
    "sm_64x64_k64_s4_p1_c1_t0",
    "sm_8x64_k128_s4_p1_c1_t0",
    "sm_8x64_k128_s6_p1_c1_t0",
    "sm_8x64_k256_s3_p1_c1_t0",
    "sm_8x64_k128_s4_p2_c1_t0",
    "sm_16x64_k64_s7_p1_c1_t0",
    "sm_16x64_k64_s11_p1_c1_t0",
    "sm_16x64_k128_s5_p1_c1_t0",
    "sm_16x64_k128_s4_p1_c2_t0",
    "sm_32x64_k128_s3_p1_c1_t0",
    "sm_32x64_k128_s4_p1_c1_t0",
    "sm_64x64_k64_s6_p1_c1_t0",
    "sm_64x64_k64_s4_p1_c4_t0",
    "sm_64x64_k64_s6_p1_c4_t0",
    "sm_64x128_k128_s4_p1_c1_t0",
    "sm_32x64_k128_s3_p1_c1_t1",
    "sm_64x64_k64_s4_p1_c1_t1",
    "sm_64x64_k64_s6_p1_c1_t1",
]
CONFIG_NAMES += SMALL_M_NAMES
DOWN_NAMES = [
    "sm_16x64_k128_s4_p4_c1_t0",
    "sm_64x64_k64_s6_p4_c1_t0",
    "sm_8x64_k128_s6_p8_c1_t0",
    "sm_8x64_k256_s3_p4_c1_t0",
    "sm_8x64_k128_s4_p8_c1_t0",
    "sm_16x64_k128_s8_p4_c1_t0",
    "sm_32x64_k128_s4_p4_c1_t0",
    "sm_32x64_k128_s4_p8_c1_t0",
    "sm_64x64_k64_s6_p8_c1_t0",
]
KERNEL_1_NAMES = [name for name in CONFIG_NAMES if name.startswith("k1_")]
