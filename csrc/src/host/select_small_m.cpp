#include "host/select_small_m.hpp"

#include <array>

#include "host/config.hpp"

namespace swiglu {
namespace {

// Beyond, the tokens' own traffic through L2 eats up what reading the weights well has won.
constexpr int64_t kMostTokens = 64;
constexpr int64_t kRows = 64;  // of weights, by which CTAs are counted

// What was fastest for each number of tokens (NOTES.md), where two CTAs of 64 rows on a
// multiprocessor hold all of them at once, with deep rings; where it takes three; and where they
// come in rounds anyway.
struct Tile {
  int tokens;
  int of_two;
  int of_three;
  int in_rounds;
};

constexpr std::array<Tile, 4> kTiles = {{
    {8, sm_8x64_k128_s6_p1_c1_t0, sm_8x64_k128_s4_p1_c1_t0, sm_8x64_k128_s6_p1_c1_t0},
    {16, sm_16x64_k64_s11_p1_c1_t0, sm_16x64_k128_s3_p1_c1_t0, sm_16x64_k128_s5_p1_c1_t0},
    {32, sm_32x64_k64_s9_p1_c1_t0, sm_32x64_k128_s3_p1_c1_t0, sm_32x64_k128_s4_p1_c1_t0},
    {64, sm_64x64_k64_s6_p1_c1_t0, sm_64x64_k64_s4_p1_c1_t0, sm_64x128_k128_s4_p1_c1_t0},
}};

int wanted(Tile const& tile, int64_t n, int num_sms) {
  int64_t const ctas = (2 * n + kRows - 1) / kRows;
  if (ctas <= int64_t{2} * num_sms) return tile.of_two;
  return ctas <= int64_t{3} * num_sms ? tile.of_three : tile.in_rounds;
}

}  // namespace

int select_small_m(int64_t m, int64_t n, swiglu_dtype_t dtype, swiglu_activation_t activation,
                   int num_sms) {
  if (m > kMostTokens) {
    return kNoConfig;
  }
  for (Tile const& tile : kTiles) {
    if (tile.tokens < m) continue;
    // Of three is what is compiled for every type, where anything is.
    for (int config : {wanted(tile, n, num_sms), tile.of_three}) {
      if (is_compiled(config, dtype, activation)) return config;
    }
  }
  return kNoConfig;
}

}  // namespace swiglu
