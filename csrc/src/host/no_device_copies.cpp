// Stands in for src/device/copies.cpp in builds without CUDA: there is no device to copy to.
#include "copies.hpp"

namespace swiglu {
namespace {

Error no_device() {
  return {SWIGLU_UNSUPPORTED_DEVICE,
          "library: must be built with CUDA to copy to a device, is the host-only build"};
}

}  // namespace

Error create_event(void**) { return no_device(); }
void destroy_event(void*) {}
Error record_event(void*, void*) { return no_device(); }
Error wait_for_event(void*) { return no_device(); }
bool has_passed(void*) { return true; }
Error stream_waits_for(void*, void*) { return no_device(); }
Error copy_to_device(void*, void const*, int64_t, void*) { return no_device(); }
Error copy_to_host(void*, void const*, int64_t, void*) { return no_device(); }
bool is_page_locked(void const*) { return false; }
Error make_graph(void*, void*, void**) { return no_device(); }
void destroy_graph(void*) {}
Error launch_graph(void*, void*) { return no_device(); }
Error seconds_between(void*, void*, double*) { return no_device(); }
Error get_device(int32_t*) { return no_device(); }
Error use_device(int32_t) { return no_device(); }
Error synchronize_device() { return no_device(); }

}  // namespace swiglu
