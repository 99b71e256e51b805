// Stands in for src/device/ipc.cpp in builds without CUDA: there is no device with memory to share.
#include "ipc.hpp"

namespace swiglu {
namespace {

Error no_device() {
  return {SWIGLU_UNSUPPORTED_DEVICE,
          "library: must be built with CUDA to open device memory, is the host-only build"};
}

}  // namespace

Error map_handle(void const*, void**) { return no_device(); }
Error unmap(void*) { return no_device(); }
Error describe(Mapped*) { return no_device(); }

}  // namespace swiglu
