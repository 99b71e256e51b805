// What the exported functions of swiglu.h share: the last sentence, and where exceptions end.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "host/error.hpp"
#include "swiglu/swiglu.h"

namespace swiglu {

// The calling thread's.
std::string& last_error();

// Nothing may be thrown through the C ABI; what is left to throw is an allocation of a sentence.
template <class Body>
swiglu_status_t guarded(Body&& body) noexcept {
  try {
    Error error = body();
    if (error) {
      last_error() = std::move(error.sentence);
    }
    return error.status;
  } catch (std::exception const&) {
    return SWIGLU_INTERNAL;
  }
}

inline Error null_argument(char const* name) {
  return {SWIGLU_INVALID_ARGUMENT, std::string(name) + ": must be a pointer, is NULL"};
}

// Of a question for a choice, whose answer goes to `choice`.
inline Error check_query(int64_t m, int64_t n, int64_t k, int32_t num_sms, void const* choice) {
  if (choice == nullptr) return null_argument("choice");
  if (m < 1 || n < 1 || k < 0 || num_sms < 1) {
    return {SWIGLU_INVALID_SHAPE, "m, n, num_sms: must be 1 or more and k 0 or more, are " +
                                      std::to_string(m) + ", " + std::to_string(n) + ", " +
                                      std::to_string(num_sms) + " and " + std::to_string(k)};
  }
  return {};
}

// Of a question for configuration number `index` of `count`.
inline Error check_index(int32_t index, int32_t count, swiglu_config_t const* config) {
  if (config == nullptr) return null_argument("config");
  if (config->struct_size != sizeof(swiglu_config_t)) {
    return {SWIGLU_INVALID_ARGUMENT, "struct_size: must be " +
                                         std::to_string(sizeof(swiglu_config_t)) + ", is " +
                                         std::to_string(config->struct_size)};
  }
  if (index < 0 || index >= count) {
    return {SWIGLU_INVALID_ARGUMENT,
            "index: must be 0 to " + std::to_string(count - 1) + ", is " + std::to_string(index)};
  }
  return {};
}

}  // namespace swiglu
