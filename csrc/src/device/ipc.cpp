// src/ipc.hpp by the CUDA runtime, and one function of the driver's, found without a link to it.
#include "ipc.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "swiglu/ipc.h"

namespace swiglu {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == SWIGLU_IPC_HANDLE_BYTES);

Error check(char const* call, cudaError_t status) {
  if (status == cudaSuccess) return {};
  // A client's bad handle is no news for the next launch that asks.
  cudaGetLastError();
  return {SWIGLU_CUDA_ERROR, std::string(call) + ": CUDA error: " + cudaGetErrorName(status) +
                                 ", " + cudaGetErrorString(status)};
}

using AddressRange = decltype(&cuMemGetAddressRange);

// The driver's function, or null where there is no driver.
AddressRange look_up() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;
  if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, kSince, cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<AddressRange>(found);
}

}  // namespace

Error map_handle(void const* handle, void** address) {
  cudaIpcMemHandle_t copy;
  std::memcpy(&copy, handle, sizeof copy);
  return check("cudaIpcOpenMemHandle",
               cudaIpcOpenMemHandle(address, copy, cudaIpcMemLazyEnablePeerAccess));
}

Error unmap(void* address) { return check("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(address)); }

Error describe(Mapped* mapped) {
  cudaPointerAttributes attributes{};
  if (Error error = check("cudaPointerGetAttributes",
                          cudaPointerGetAttributes(&attributes, mapped->address))) {
    return error;
  }
  mapped->device = attributes.device;
  static AddressRange const address_range = look_up();
  if (address_range == nullptr) {
    return {SWIGLU_CUDA_ERROR, "cuMemGetAddressRange: CUDA error: the driver has no such function"};
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  auto const address = reinterpret_cast<CUdeviceptr>(mapped->address);
  CUresult const status = address_range(&base, &bytes, address);
  if (status != CUDA_SUCCESS) {
    return {SWIGLU_CUDA_ERROR,
            "cuMemGetAddressRange: CUDA error: number " + std::to_string(static_cast<int>(status))};
  }
  mapped->bytes = static_cast<int64_t>(bytes - (address - base));
  return {};
}

}  // namespace swiglu
