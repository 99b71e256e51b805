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
KERNEL_1_NAMES = [name for name in CONFIG_NAMES if name.startswith("k1_")]
