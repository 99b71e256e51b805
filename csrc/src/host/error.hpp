// The result of everything that can fail: a reason and a sentence for humans.
#pragma once

#include <string>
#include <utility>

#include "swiglu/swiglu.h"

namespace swiglu {

// Empty (false) on success. The sentence names the argument, the rule and the value.
struct Error {
  swiglu_status_t status = SWIGLU_OK;
  std::string sentence;

  Error() = default;
  Error(swiglu_status_t status_, std::string sentence_)
      : status(status_), sentence(std::move(sentence_)) {}
  explicit operator bool() const { return status != SWIGLU_OK; }
};

}  // namespace swiglu
