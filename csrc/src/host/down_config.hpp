// The configurations of the down projection, by id.
#pragma once

#include "host/small_m_list.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// In a scope of its own, since gate/up has configurations of the same names. Append only.
struct DownConfigId {
  enum Value : int {
#define SWIGLU_ID(...) SWIGLU_SMALL_M_NAME(__VA_ARGS__),
    SWIGLU_DOWN(SWIGLU_ID)
#undef SWIGLU_ID
        kCount
  };
};
inline constexpr int kNumDownConfigs = DownConfigId::kCount;

// The row of `id`, 0 <= id < kNumDownConfigs. struct_size is filled in.
swiglu_config_t const& down_config_at(int id);

// Is this configuration compiled for this dtype?
bool is_down_compiled(int id, swiglu_dtype_t dtype);

}  // namespace swiglu
