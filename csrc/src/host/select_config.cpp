#include "host/select_config.hpp"

#include <array>

#include "host/config.hpp"

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

constexpr std::array<TileCost, 3> kCandidates = {{
    // Operands re-read most often per FLOP; the other warpgroup hides the epilogue.
    {kPp64x256c1x1, 1.30, 300},
    {kPp128x192c2x1, 1.05, 300},
    // Fewest bytes per FLOP, so the clocks hold best at the power limit; both warpgroups leave the
    // tensor cores idle during the epilogue.
    {kCo256x192c2x1, 1.00, 3500},
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

int64_t token_bytes(int64_t m, int64_t k) { return 2 * m * k; }
int64_t weight_bytes(int64_t n, int64_t k) { return 4 * n * k; }

}  // namespace

swiglu_choice_t select_config(int64_t m, int64_t n, int64_t k, swiglu_dtype_t dtype,
                              swiglu_activation_t activation, int num_sms) {
  TileCost const* best = nullptr;
  for (TileCost const& candidate : kCandidates) {
    if (is_compiled(candidate.config, dtype, activation) &&
        (best == nullptr ||
         cycles(candidate, m, n, k, num_sms) < cycles(*best, m, n, k, num_sms))) {
      best = &candidate;
    }
  }
  int const config = best->config;
  return {config, select_raster(m, k), select_swizzle(config, m, n, k)};
}

swiglu_raster_t select_raster(int64_t m, int64_t k) {
  // All tokens first, for two or three columns of tiles at a time, reads the weights once, as long
  // as the tokens stay in L2.
  return token_bytes(m, k) <= kResidentBytes ? SWIGLU_RASTER_ALONG_M : SWIGLU_RASTER_ALONG_N;
}

int select_swizzle(int config, int64_t m, int64_t n, int64_t k) {
  if (token_bytes(m, k) <= kResidentBytes || weight_bytes(n, k) <= kResidentBytes) {
    return 1;  // one operand is resident as a whole
  }
  // Groups of tokens that are resident while the weights stream past them: the larger the group,
  // the fewer times the weights are read.
  swiglu_config_t const& c = config_at(config);
  int swizzle = 8;
  while (swizzle > 1 &&
         token_bytes(int64_t{swizzle} * c.tile_m * c.cluster_m, k) > kResidentBytes) {
    swizzle /= 2;
  }
  return swizzle;
}

}  // namespace swiglu
