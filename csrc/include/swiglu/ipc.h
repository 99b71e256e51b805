/*
 * ipc.h - device memory that another process shares by a handle of CUDA's.
 *
 * Rules as in swiglu.h. Both functions may wait for the device, and may be called from any thread.
 * The processor must not touch what they give: it is memory of the device.
 */
#ifndef SWIGLU_IPC_H_
#define SWIGLU_IPC_H_

#include "swiglu/swiglu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA_IPC_HANDLE_SIZE: bytes of a cudaIpcMemHandle_t. */
#define SWIGLU_IPC_HANDLE_BYTES 64

/*
 * Maps the memory of a handle of SWIGLU_IPC_HANDLE_BYTES for the current device. `address` becomes
 * where it begins for this process, `bytes` how many there are from there on, as far as the driver
 * tells, and `device` the one that it lies on. A handle that is open already gives the same address,
 * and must be closed as often.
 */
SWIGLU_API swiglu_status_t swiglu_ipc_open(void const* handle, void** address, int64_t* bytes,
                                           int32_t* device);

/* Undoes one swiglu_ipc_open, by its address, on the same current device. */
SWIGLU_API swiglu_status_t swiglu_ipc_close(void* address);

#ifdef __cplusplus
}
#endif

#endif /* SWIGLU_IPC_H_ */
