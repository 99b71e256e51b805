#include "host/select_config.hpp"

#include <algorithm>
#include <array>

#include "host/config.hpp"
#include "host/select_small_m.hpp"

namespace swiglu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a tile costs on one multiprocessor, fitted to the H200 runs in NOTES.md: the WGMMA cycles of
// its shape times `factor`, plus `exposed` cycles in which the tensor cores wait.
struct TileCost {
  int config;
  double factor;
  double exposed;
};

constexpr std::array<TileCost, 4> kCandidates = {{
    // Operands re-read most often per FLOP; the other warpgroup hides the epilogue.
    {kPp64x256c1x1, 1.30, 300},
    {kPp128x160c2x1, 1.11, 300},
    {kPp128x192c2x1, 1.05, 300},
    // Fewest bytes per FLOP, so the clocks hold best at the power limit; both warpgroups leave the
    // tensor cores idle during the epilogue.
    {kCo256x192c1x2, 1.00, 3500},
}};

// Dense 16-bit FLOPs per cycle of one multiprocessor.
constexpr double kFlopsPerCycle = 4096;

double cycles(TileCost const& cost, int64_t m, int64_t n, int64_t k, int num_sms) {
  swiglu_config_t const& c = config_at(cost.config);
  int64_t const tiles = ceil_div(m, c.tile_m) * ceil_div(n, c.tile_n);
  double const tile_flops = 4.0 * c.tile_m * c.tile_n * static_cast<double>(k);
  return static_cast<double>(ceil_div(tiles, num_sms)) *
         (cost.factor * tile_flops / kFlopsPerCycle + cost.exposed);
}

// Bytes of one operand that stay in L2 while the other streams past: the H200's 60 MB are two
// halves, and lines that both halves read are held twice.
constexpr int64_t kResidentBytes = 24'000'000;

// Measured (NOTES.md): 8 is better than its neighbours by 2 to 3 %, which is more than the bytes
// explain. Clusters seem to be dealt out to the GPU's processing clusters in turn, so that with a
// period of 8 those of one processing cluster read the same rows.
constexpr int kGroup = 8;

int64_t token_bytes(int64_t m, int64_t k) { return 2 * m * k; }
int64_t weight_bytes(int64_t n, int64_t k) { return 4 * n * k; }

}  // namespace

swiglu_choice_t select_config(int64_t m, int64_t n, int64_t k, swiglu_dtype_t dtype,
                              swiglu_activation_t activation, int num_sms) {
  int const small = select_small_m(m, n, dtype, activation, num_sms);
  if (small != kNoConfig) {
    return {small, select_raster(m, n, k), select_swizzle(m, n, k)};
  }
  TileCost const* best = nullptr;
  for (TileCost const& candidate : kCandidates) {
    if (is_compiled(candidate.config, dtype, activation) &&
        (best == nullptr ||
         cycles(candidate, m, n, k, num_sms) < cycles(*best, m, n, k, num_sms))) {
      best = &candidate;
    }
  }
  return {best->config, select_raster(m, n, k), select_swizzle(m, n, k)};
}

swiglu_raster_t select_raster(int64_t m, int64_t n, int64_t k) {
  // What is walked along is read again for every group across it: the smaller operand.
  return token_bytes(m, k) <= weight_bytes(n, k) ? SWIGLU_RASTER_ALONG_M : SWIGLU_RASTER_ALONG_N;
}

int select_swizzle(int64_t m, int64_t n, int64_t k) {
  // All of an operand that stays in L2 for one group of the other's tiles after the next; beyond
  // that, groups that make the tiles worked on at the same time about a square, so that they read
  // the fewest rows.
  return std::min(token_bytes(m, k), weight_bytes(n, k)) <= kResidentBytes ? 1 : kGroup;
}

}  // namespace swiglu
