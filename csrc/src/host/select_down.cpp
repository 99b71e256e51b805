#include "host/select_down.hpp"

#include <array>

#include "host/down_config.hpp"

namespace swiglu {
namespace {

constexpr int64_t kRows = 64;  // of weights, that a CTA of every candidate has

// What was fastest for each number of tokens (NOTES.md): where clusters of four CTAs are too few to
// keep every multiprocessor busy; where they give each one CTA, two, or three; and where they come
// in rounds.
struct Tile {
  int tokens;
  int too_few;
  int of_one;
  int of_two;
  int of_three;
  int in_rounds;
};

using Id = DownConfigId;
constexpr std::array<Tile, 4> kTiles = {{
    {8, Id::sm_8x64_k128_s6_p6_c1_t0, Id::sm_8x64_k128_s6_p6_c1_t0, Id::sm_8x64_k256_s3_p4_c1_t0,
     Id::sm_8x64_k128_s4_p8_c1_t0, Id::sm_8x64_k128_s4_p8_c1_t0},
    {16, Id::sm_16x64_k128_s8_p4_c1_t0, Id::sm_16x64_k128_s5_p6_c1_t0,
     Id::sm_16x64_k128_s4_p4_c1_t0, Id::sm_16x64_k128_s3_p4_c1_t0, Id::sm_16x64_k128_s8_p4_c1_t0},
    {32, Id::sm_32x64_k128_s4_p8_c1_t0, Id::sm_32x64_k128_s4_p6_c1_t0,
     Id::sm_32x64_k128_s4_p4_c1_t0, Id::sm_32x64_k128_s4_p4_c1_t0, Id::sm_32x64_k128_s4_p4_c1_t0},
    {64, Id::sm_64x64_k64_s6_p8_c1_t0, Id::sm_64x64_k64_s6_p4_c1_t0, Id::sm_64x64_k64_s6_p4_c1_t0,
     Id::sm_64x64_k64_s6_p4_c1_t0, Id::sm_64x64_k64_s6_p4_c1_t0},
}};

int wanted(Tile const& tile, int64_t n, int num_sms) {
  int64_t const ctas = 4 * ((n + kRows - 1) / kRows);
  // A tenth of the multiprocessors is out of reach of clusters.
  if (10 * ctas < int64_t{9} * num_sms) return tile.too_few;
  if (ctas <= num_sms) return tile.of_one;
  if (ctas <= int64_t{2} * num_sms) return tile.of_two;
  return ctas <= int64_t{3} * num_sms ? tile.of_three : tile.in_rounds;
}

}  // namespace

int select_down_config(int64_t m, int64_t n, int64_t, swiglu_dtype_t dtype, int num_sms) {
  int last = 0;
  for (Tile const& tile : kTiles) {
    int const best = wanted(tile, n, num_sms);
    // Of two is what is compiled for every type, where anything is.
    int const found = is_down_compiled(best, dtype) ? best : tile.of_two;
    if (is_down_compiled(found, dtype)) {
      last = found;
      if (m <= tile.tokens) break;
    }
  }
  return last;
}

}  // namespace swiglu
