#include "host/checks.hpp"

#include <algorithm>
#include <cstdint>

namespace swiglu {

Error refuse(swiglu_status_t status, char const* argument, std::string const& rule,
             std::string const& value) {
  return {status, std::string(argument) + ": must be " + rule + ", is " + value};
}

Error check_range(char const* argument, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return refuse(SWIGLU_INVALID_SHAPE, argument,
                  std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
  }
  return {};
}

Error check_multiple(swiglu_status_t status, char const* argument, int64_t value) {
  if (value % kAlignment != 0) {
    return refuse(status, argument, "a multiple of " + std::to_string(kAlignment),
                  std::to_string(value));
  }
  return {};
}

Error check_enum(char const* argument, int32_t value, std::initializer_list<int32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) {
    return {};
  }
  std::string rule = "one of";
  for (int32_t option : allowed) {
    rule += " " + std::to_string(option);
  }
  return refuse(SWIGLU_INVALID_ARGUMENT, argument, rule, std::to_string(value));
}

Error check_pointer(char const* argument, void const* pointer) {
  if (pointer == nullptr) {
    return refuse(SWIGLU_INVALID_ARGUMENT, argument, "a device pointer", "NULL");
  }
  uintptr_t const address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 16 != 0) {
    return refuse(SWIGLU_MISALIGNED, argument, "aligned to 16 bytes",
                  std::to_string(address % 16) + " bytes past");
  }
  return {};
}

Error check_stride(char const* argument, int64_t stride, int64_t columns) {
  if (Error error = check_range(argument, stride, columns, kMaxStride - 1)) {
    return error;
  }
  return check_multiple(SWIGLU_MISALIGNED, argument, stride);
}

Error check_output(int64_t m, int64_t n) {
  if (Error error = check_range("m", m, 0, kMaxExtent)) return error;
  if (Error error = check_range("n", n, kAlignment, kMaxColumns)) return error;
  if (Error error = check_multiple(SWIGLU_INVALID_SHAPE, "n", n)) return error;
  if (m > kMaxOutputs / n) {
    return refuse(SWIGLU_INVALID_SHAPE, "m", "at most 2^43 when multiplied by n",
                  std::to_string(m));
  }
  return {};
}

Error check_depth(int64_t k) {
  if (Error error = check_range("k", k, 0, kMaxExtent)) return error;
  return check_multiple(SWIGLU_INVALID_SHAPE, "k", k);
}

Error check_grid(swiglu_config_t const& config, int64_t m, int64_t n) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  int64_t const tiles_m = (m + config.tile_m - 1) / config.tile_m;
  int64_t const wide = int64_t{config.tile_n} * config.cluster_n;
  int64_t const clusters = tiles_m * ((n + wide - 1) / wide);
  if (config.swap_ab != 0 && clusters * config.cluster_n * config.split_k > kMaxGrid) {
    return refuse(SWIGLU_INVALID_SHAPE, "m",
                  std::string("few enough for 2^31 - 1 CTAs of ") + config.name, std::to_string(m));
  }
  return {};
}

}  // namespace swiglu
