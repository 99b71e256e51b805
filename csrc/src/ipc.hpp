// What src/host/ipc.cpp asks of CUDA, so that it builds and tests without it.
#pragma once

#include <cstdint>

#include "host/error.hpp"

namespace swiglu {

// Memory of a device, as another process's handle gives it.
struct Mapped {
  void* address = nullptr;
  int64_t bytes = 0;
  int32_t device = -1;
};

Error map_handle(void const* handle, void** address);
Error unmap(void* address);
// Fills in what lies at `mapped->address`.
Error describe(Mapped* mapped);

}  // namespace swiglu
