// Which CTAs of a cluster receive a tile that one of them loads: operand A is shared along the
// cluster's N extent, B along its M extent.
#pragma once

#include "cute/tensor.hpp"

namespace swiglu::device {

template <class ClusterShape>
CUTLASS_DEVICE uint16_t multicast_mask_a(int cta_m) {
  auto const ranks = cute::Layout<ClusterShape>{};
  uint16_t mask = 0;
  for (int n = 0; n < cute::size<1>(ranks); ++n) {
    mask |= uint16_t(1u << ranks(cta_m, n, cute::Int<0>{}));
  }
  return mask;
}

template <class ClusterShape>
CUTLASS_DEVICE uint16_t multicast_mask_b(int cta_n) {
  auto const ranks = cute::Layout<ClusterShape>{};
  uint16_t mask = 0;
  for (int m = 0; m < cute::size<0>(ranks); ++m) {
    mask |= uint16_t(1u << ranks(m, cta_n, cute::Int<0>{}));
  }
  return mask;
}

}  // namespace swiglu::device
