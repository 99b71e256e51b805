#include "host/config.hpp"

#include <array>

namespace swiglu {
namespace {

constexpr int kAllTypes = 1;    // every dtype and activation
constexpr int kComparison = 2;  // never chosen

// Tile widths are those of the output: of kernel 2, half of the accumulator's that the names give.
constexpr swiglu_config_t row(int id, int kernel, int tile_m, int tile_n, int cluster_m,
                              int cluster_n, int cooperative, int granularity, int flags,
                              char const* name) {
  return {sizeof(swiglu_config_t),
          id,
          kernel,
          tile_m,
          tile_n,
          64,
          cluster_m,
          cluster_n,
          cooperative,
          granularity,
          0,
          1,
          flags & kAllTypes ? 1 : 0,
          flags & kComparison ? 1 : 0,
          name};
}

// `rows` are the weights': two for an output.
constexpr swiglu_config_t small_m_row(int id, int tokens, int rows, int tile_k, int splits,
                                      int sharers, int flags, char const* name) {
  swiglu_config_t made = row(id, 2, tokens, rows / 2, 1, sharers, 0, 8, flags, name);
  made.tile_k = tile_k;
  made.swap_ab = 1;
  made.split_k = splits;
  return made;
}

#define SWIGLU_ROW(flags, tokens, rows, tile_k, stages, splits, sharers, turn)                  \
  small_m_row(SWIGLU_SMALL_M_NAME(tokens, rows, tile_k, stages, splits, sharers, turn), tokens, \
              rows, tile_k, splits, sharers, flags,                                             \
              SWIGLU_SMALL_M_TITLE(tokens, rows, tile_k, stages, splits, sharers, turn)),
#define SWIGLU_ALL_TYPES_ROW(...) SWIGLU_ROW(kAllTypes, __VA_ARGS__)
#define SWIGLU_BF16_SILU_ROW(...) SWIGLU_ROW(0, __VA_ARGS__)

constexpr std::array<swiglu_config_t, kNumConfigs> kTable = {
    row(kPp128x192c2x1, 2, 128, 96, 2, 1, 0, 8, kAllTypes, "pp_128x192_c2x1"),
    row(kPp128x192c1x1, 2, 128, 96, 1, 1, 0, 8, 0, "pp_128x192_c1x1"),
    row(kPp128x160c2x1, 2, 128, 80, 2, 1, 0, 8, 0, "pp_128x160_c2x1"),
    row(kPp64x256c1x1, 2, 64, 128, 1, 1, 0, 8, 0, "pp_64x256_c1x1"),
    row(kCo128x256c2x1, 2, 128, 128, 2, 1, 1, 8, 0, "co_128x256_c2x1"),
    row(kCo256x128c1x2, 2, 256, 64, 1, 2, 1, 8, 0, "co_256x128_c1x2"),
    row(kCo256x192c2x1, 2, 256, 96, 2, 1, 1, 8, 0, "co_256x192_c2x1"),
    row(kCo256x192c1x2, 2, 256, 96, 1, 2, 1, 8, 0, "co_256x192_c1x2"),
    row(kPp128x192c2x1g1, 2, 128, 96, 2, 1, 0, 1, kComparison, "pp_128x192_c2x1_g1"),
    row(kPp128x192c2x1phys, 2, 128, 96, 2, 1, 0, -1, kComparison, "pp_128x192_c2x1_phys"),
    row(kK1_128x128c2x1, 1, 128, 128, 2, 1, 0, 0, 0, "k1_128x128_c2x1"),
    row(kK1_128x128c1x2, 1, 128, 128, 1, 2, 0, 0, 0, "k1_128x128_c1x2"),
    row(kK1_64x256c2x1, 1, 64, 256, 2, 1, 0, 0, 0, "k1_64x256_c2x1"),
    row(kK1_128x128c2x1hold, 1, 128, 128, 2, 1, 0, 0, kComparison, "k1_128x128_c2x1_hold"),
    SWIGLU_SMALL_M_ALL_TYPES(SWIGLU_ALL_TYPES_ROW) SWIGLU_SMALL_M_BF16_SILU(SWIGLU_BF16_SILU_ROW)};

constexpr bool ids_are_indices() {
  for (int i = 0; i < kNumConfigs; ++i) {
    if (kTable[i].id != i) {
      return false;
    }
  }
  return true;
}
static_assert(ids_are_indices());

}  // namespace

swiglu_config_t const& config_at(int id) { return kTable[static_cast<size_t>(id)]; }

bool is_compiled(int id, swiglu_dtype_t dtype, swiglu_activation_t activation) {
  return config_at(id).all_types != 0 || (dtype == SWIGLU_BF16 && activation == SWIGLU_SILU);
}

}  // namespace swiglu
