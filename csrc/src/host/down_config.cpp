#include "host/down_config.hpp"

#include <array>
#include <cstddef>

namespace swiglu {
namespace {

constexpr swiglu_config_t row(int id, int tokens, int rows, int tile_k, int splits, int sharers,
                              int all_types, char const* name) {
  swiglu_config_t made{};
  made.struct_size = sizeof(swiglu_config_t);
  made.id = id;
  made.tile_m = tokens;
  made.tile_n = rows;
  made.tile_k = tile_k;
  made.cluster_m = 1;
  made.cluster_n = sharers;
  made.swap_ab = 1;
  made.split_k = splits;
  made.all_types = all_types;
  made.name = name;
  return made;
}

#define SWIGLU_ROW(all_types, tokens, rows, tile_k, stages, splits, sharers, turn)            \
  row(DownConfigId::SWIGLU_SMALL_M_NAME(tokens, rows, tile_k, stages, splits, sharers, turn), \
      tokens, rows, tile_k, splits, sharers, all_types,                                       \
      SWIGLU_SMALL_M_TITLE(tokens, rows, tile_k, stages, splits, sharers, turn)),
#define SWIGLU_ALL_TYPES_ROW(...) SWIGLU_ROW(1, __VA_ARGS__)
#define SWIGLU_BF16_ROW(...) SWIGLU_ROW(0, __VA_ARGS__)

constexpr std::array<swiglu_config_t, kNumDownConfigs> kTable = {
    SWIGLU_DOWN_ALL_TYPES(SWIGLU_ALL_TYPES_ROW) SWIGLU_DOWN_BF16(SWIGLU_BF16_ROW)};

constexpr bool ids_are_indices() {
  for (int i = 0; i < kNumDownConfigs; ++i) {
    if (kTable[static_cast<size_t>(i)].id != i) {
      return false;
    }
  }
  return true;
}
static_assert(ids_are_indices());

}  // namespace

swiglu_config_t const& down_config_at(int id) { return kTable[static_cast<size_t>(id)]; }

bool is_down_compiled(int id, swiglu_dtype_t dtype) {
  return down_config_at(id).all_types != 0 || dtype == SWIGLU_BF16;
}

}  // namespace swiglu
