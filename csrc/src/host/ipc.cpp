// The functions of ipc.h.
#include "swiglu/ipc.h"

#include "guarded.hpp"
#include "ipc.hpp"

namespace swiglu {
namespace {

Error open(void const* handle, Mapped* mapped) {
  if (Error error = map_handle(handle, &mapped->address)) return error;
  Error error = describe(mapped);
  // Nobody will ever close what nobody knows of; why it is unknown matters more than whether that
  // works.
  if (error) static_cast<void>(unmap(mapped->address));
  return error;
}

}  // namespace
}  // namespace swiglu

extern "C" {

swiglu_status_t swiglu_ipc_open(void const* handle, void** address, int64_t* bytes,
                                int32_t* device) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (handle == nullptr) return swiglu::null_argument("handle");
    if (address == nullptr) return swiglu::null_argument("address");
    if (bytes == nullptr) return swiglu::null_argument("bytes");
    if (device == nullptr) return swiglu::null_argument("device");
    swiglu::Mapped mapped;
    if (swiglu::Error error = swiglu::open(handle, &mapped)) return error;
    *address = mapped.address;
    *bytes = mapped.bytes;
    *device = mapped.device;
    return {};
  });
}

swiglu_status_t swiglu_ipc_close(void* address) {
  return swiglu::guarded([&]() -> swiglu::Error {
    if (address == nullptr) return swiglu::null_argument("address");
    return swiglu::unmap(address);
  });
}

}  // extern "C"
