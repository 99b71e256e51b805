// The small-M configurations as lists for macros: X(tokens, rows, tile_k, stages, splits, sharers,
// turn) of device/small_m_kernel.cuh, rows counted in the weights. Their order is that of the ids,
// which are part of the ABI.
#pragma once

// gate/up, for every dtype and activation.
#define SWIGLU_SMALL_M_ALL_TYPES(X) \
  X(16, 64, 128, 3, 1, 1, 0)        \
  X(64, 64, 64, 4, 1, 1, 0)

// gate/up, for bf16 with SiLU.
#define SWIGLU_SMALL_M_BF16_SILU(X) \
  X(8, 64, 128, 4, 1, 1, 0)         \
  X(8, 64, 128, 6, 1, 1, 0)         \
  X(8, 64, 256, 3, 1, 1, 0)         \
  X(8, 64, 128, 4, 2, 1, 0)         \
  X(16, 64, 64, 7, 1, 1, 0)         \
  X(16, 64, 64, 11, 1, 1, 0)        \
  X(16, 64, 128, 5, 1, 1, 0)        \
  X(16, 64, 128, 4, 1, 2, 0)        \
  X(32, 64, 128, 3, 1, 1, 0)        \
  X(32, 64, 128, 4, 1, 1, 0)        \
  X(64, 64, 64, 6, 1, 1, 0)         \
  X(64, 64, 64, 4, 1, 4, 0)         \
  X(64, 64, 64, 6, 1, 4, 0)         \
  X(64, 128, 128, 4, 1, 1, 0)       \
  X(32, 64, 128, 3, 1, 1, 1)        \
  X(64, 64, 64, 4, 1, 1, 1)         \
  X(64, 64, 64, 6, 1, 1, 1)         \
  X(32, 64, 64, 6, 1, 1, 0)         \
  X(32, 64, 64, 9, 1, 1, 0)         \
  X(64, 128, 64, 4, 1, 1, 0)        \
  X(64, 192, 64, 5, 1, 1, 0)

// The down projection, for every dtype.
#define SWIGLU_DOWN_ALL_TYPES(X) \
  X(16, 64, 128, 4, 4, 1, 0)     \
  X(64, 64, 64, 6, 4, 1, 0)

// The down projection, for bf16.
#define SWIGLU_DOWN_BF16(X)  \
  X(8, 64, 128, 6, 8, 1, 0)  \
  X(8, 64, 256, 3, 4, 1, 0)  \
  X(8, 64, 128, 4, 8, 1, 0)  \
  X(16, 64, 128, 8, 4, 1, 0) \
  X(32, 64, 128, 4, 4, 1, 0) \
  X(32, 64, 128, 4, 8, 1, 0) \
  X(64, 64, 64, 6, 8, 1, 0)  \
  X(8, 64, 128, 6, 6, 1, 0)  \
  X(16, 64, 128, 5, 6, 1, 0) \
  X(16, 64, 128, 3, 4, 1, 0) \
  X(32, 64, 128, 4, 6, 1, 0)

#define SWIGLU_SMALL_M(X)     \
  SWIGLU_SMALL_M_ALL_TYPES(X) \
  SWIGLU_SMALL_M_BF16_SILU(X)
#define SWIGLU_DOWN(X)     \
  SWIGLU_DOWN_ALL_TYPES(X) \
  SWIGLU_DOWN_BF16(X)

// What every place calls such a configuration.
#define SWIGLU_SMALL_M_NAME(tokens, rows, tile_k, stages, splits, sharers, turn) \
  sm_##tokens##x##rows##_k##tile_k##_s##stages##_p##splits##_c##sharers##_t##turn
#define SWIGLU_SMALL_M_TITLE(tokens, rows, tile_k, stages, splits, sharers, turn) \
  "sm_" #tokens "x" #rows "_k" #tile_k "_s" #stages "_p" #splits "_c" #sharers "_t" #turn
