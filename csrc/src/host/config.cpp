#include "host/config.hpp"

#include <array>

namespace swiglu {
namespace {

// Tile widths here are those of the output, half of the accumulator's that the names give.
constexpr swiglu_config_t row(int id, int tile_m, int tile_n, int cluster_m, int cluster_n,
                              int cooperative, int granularity, int all_types, char const* name) {
  return {sizeof(swiglu_config_t),
          id,
          tile_m,
          tile_n,
          64,
          cluster_m,
          cluster_n,
          cooperative,
          granularity,
          all_types,
          name};
}

constexpr std::array<swiglu_config_t, kNumConfigs> kTable = {
    row(kPp128x192c2x1, 128, 96, 2, 1, 0, 8, 1, "pp_128x192_c2x1"),
    row(kPp128x192c1x1, 128, 96, 1, 1, 0, 8, 0, "pp_128x192_c1x1"),
    row(kPp128x160c2x1, 128, 80, 2, 1, 0, 8, 0, "pp_128x160_c2x1"),
    row(kPp64x256c1x1, 64, 128, 1, 1, 0, 8, 1, "pp_64x256_c1x1"),
    row(kCo128x256c2x1, 128, 128, 2, 1, 1, 8, 0, "co_128x256_c2x1"),
    row(kCo256x128c1x2, 256, 64, 1, 2, 1, 8, 0, "co_256x128_c1x2"),
    row(kCo256x192c2x1, 256, 96, 2, 1, 1, 8, 0, "co_256x192_c2x1"),
    row(kCo256x192c1x2, 256, 96, 1, 2, 1, 8, 0, "co_256x192_c1x2"),
    row(kPp128x192c2x1g1, 128, 96, 2, 1, 0, 1, 0, "pp_128x192_c2x1_g1"),
    row(kPp128x192c2x1phys, 128, 96, 2, 1, 0, 0, 0, "pp_128x192_c2x1_phys"),
};

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
