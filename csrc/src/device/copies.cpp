// src/copies.hpp by the CUDA runtime.
#include "copies.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace swiglu {
namespace {

Error check(char const* call, cudaError_t status) {
  if (status == cudaSuccess) return {};
  return {SWIGLU_CUDA_ERROR,
          std::string(call) + ": CUDA error: " + cudaGetErrorString(status)};
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

Error copy(void* target, void const* source, int64_t bytes, cudaMemcpyKind kind, void* stream) {
  return check("cudaMemcpyAsync", cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), kind,
                                                  as_stream(stream)));
}

}  // namespace

Error create_event(void** event) {
  cudaEvent_t made = nullptr;
  Error error = check("cudaEventCreate", cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *event = made;
  return error;
}

void destroy_event(void* event) { cudaEventDestroy(as_event(event)); }

Error record_event(void* event, void* stream) {
  return check("cudaEventRecord", cudaEventRecord(as_event(event), as_stream(stream)));
}

Error wait_for_event(void* event) {
  return check("cudaEventSynchronize", cudaEventSynchronize(as_event(event)));
}

bool has_passed(void* event) { return cudaEventQuery(as_event(event)) != cudaErrorNotReady; }

Error stream_waits_for(void* stream, void* event) {
  return check("cudaStreamWaitEvent", cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}

Error copy_to_device(void* device, void const* host, int64_t bytes, void* stream) {
  return copy(device, host, bytes, cudaMemcpyHostToDevice, stream);
}

Error copy_to_host(void* host, void const* device, int64_t bytes, void* stream) {
  return copy(host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

bool is_page_locked(void const* host) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, host) == cudaSuccess &&
         attributes.type == cudaMemoryTypeHost;
}

Error make_graph(void* captured, void* stream, void** graph) {
  cudaGraphExec_t made = nullptr;
  // Or its first launch would take as long as many.
  cudaGraphInstantiateParams params{};
  params.flags = cudaGraphInstantiateFlagUpload;
  params.uploadStream = as_stream(stream);
  Error error = check(
      "cudaGraphInstantiateWithParams",
      cudaGraphInstantiateWithParams(&made, static_cast<cudaGraph_t>(captured), &params));
  *graph = made;
  return error;
}

void destroy_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

Error launch_graph(void* graph, void* stream) {
  return check("cudaGraphLaunch",
               cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream)));
}

Error seconds_between(void* from, void* to, double* seconds) {
  float milliseconds = 0;
  Error error =
      check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, as_event(from), as_event(to)));
  *seconds = static_cast<double>(milliseconds) * 1e-3;
  return error;
}

Error get_device(int32_t* device) { return check("cudaGetDevice", cudaGetDevice(device)); }

Error use_device(int32_t device) { return check("cudaSetDevice", cudaSetDevice(device)); }

Error synchronize_device() { return check("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

}  // namespace swiglu
