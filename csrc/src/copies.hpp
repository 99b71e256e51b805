// What transfer.cpp and runner.cpp ask of the CUDA runtime, so that they build and test without it.
#pragma once

#include <cstdint>

#include "host/error.hpp"

namespace swiglu {

Error create_event(void** event);
void destroy_event(void* event);
Error record_event(void* event, void* stream);
// Returns at once for an event that was never recorded.
Error wait_for_event(void* event);
// Whether nobody would wait for it any more; so too where the device has failed.
bool has_passed(void* event);
Error stream_waits_for(void* stream, void* event);
Error copy_to_device(void* device, void const* host, int64_t bytes, void* stream);
Error copy_to_host(void* host, void const* device, int64_t bytes, void* stream);
bool is_page_locked(void const* host);
// From a captured cudaGraph_t, which may go afterwards; `stream` uploads it.
Error make_graph(void* captured, void* stream, void** graph);
void destroy_graph(void* graph);
Error launch_graph(void* graph, void* stream);
// Between two events with a time that have passed.
Error seconds_between(void* from, void* to, double* seconds);
Error get_device(int32_t* device);
Error use_device(int32_t device);
// Waits for all that was enqueued on the current device.
Error synchronize_device();

}  // namespace swiglu
