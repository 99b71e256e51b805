// The kernel configurations that exist, by id, and their names. Pure data; the kernels themselves
// are in device/instances/.
#pragma once

#include "host/small_m_list.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// Order of the table = id = order of device/launch_table.cpp. Append only: ids are part of the ABI.
enum ConfigId : int {
  kPp128x192c2x1 = 0,
  kPp128x192c1x1,
  kPp128x160c2x1,
  kPp64x256c1x1,
  kCo128x256c2x1,
  kCo256x128c1x2,
  kCo256x192c2x1,
  kCo256x192c1x2,
  kPp128x192c2x1g1,
  kPp128x192c2x1phys,
  kK1_128x128c2x1,
  kK1_128x128c1x2,
  kK1_64x256c2x1,
  kK1_128x128c2x1hold,
#define SWIGLU_ID(...) SWIGLU_SMALL_M_NAME(__VA_ARGS__),
  SWIGLU_SMALL_M(SWIGLU_ID)
#undef SWIGLU_ID
      kNumConfigs
};

// The row of `id`, 0 <= id < kNumConfigs. struct_size is filled in.
swiglu_config_t const& config_at(int id);

// Is this configuration compiled for this dtype and activation?
bool is_compiled(int id, swiglu_dtype_t dtype, swiglu_activation_t activation);

}  // namespace swiglu
