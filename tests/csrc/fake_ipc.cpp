// A driver for ipc.h that maps nothing: addresses are made up, and written down.
#include <cstdint>
#include <cstring>

#include "ipc.hpp"

namespace {

int64_t opened = 0;
bool describes = true;

}  // namespace

namespace swiglu {

// The handle's first eight bytes are the address; the rest must be zeros.
Error map_handle(void const* handle, void** address) {
  auto const* bytes = static_cast<char const*>(handle);
  for (int i = 8; i < 64; ++i) {
    if (bytes[i] != 0) {
      return {SWIGLU_CUDA_ERROR, "cudaIpcOpenMemHandle: CUDA error: cudaErrorInvalidValue, refused"};
    }
  }
  std::memcpy(address, handle, sizeof *address);
  ++opened;
  return {};
}

Error unmap(void* address) {
  if (reinterpret_cast<intptr_t>(address) == 1) {
    return {SWIGLU_CUDA_ERROR, "cudaIpcCloseMemHandle: CUDA error: refused"};
  }
  --opened;
  return {};
}

Error describe(Mapped* mapped) {
  if (!describes) return {SWIGLU_CUDA_ERROR, "cuMemGetAddressRange: CUDA error: number 1"};
  mapped->bytes = 4096;
  mapped->device = 3;
  return {};
}

}  // namespace swiglu

extern "C" {

// How many are open.
SWIGLU_API int64_t swiglu_test_opened(void) { return opened; }
// From now on what was mapped can be described, or cannot.
SWIGLU_API void swiglu_test_describes(int32_t does) { describes = does != 0; }

}  // extern "C"
