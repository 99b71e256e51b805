// The seam between the host code and the kernels: plain C++, no CUDA and no CUTLASS header, so that
// everything above it builds and tests without either.
#pragma once

#include <cstdint>

#include "host/down_problem.hpp"
#include "host/error.hpp"
#include "host/problem.hpp"

namespace swiglu {

// Enqueues `problem` on `stream` (a cudaStream_t) by the kernel instance `problem.config` names; M
// and K are at least 1. The error is empty on success.
Error launch_on_device(Problem const& problem, void* stream);

// The same for a down projection.
Error launch_down_on_device(DownProblem const& problem, void* stream);

// Enqueues zeros for a whole output [m, n], rows `row_stride` elements apart: what K = 0 asks for.
Error fill_zero_on_device(void* out, int64_t row_stride, int64_t m, int64_t n, void* stream);

// Streaming multiprocessors of the calling thread's current device; refuses a device that is not
// sm_90.
Error query_num_sms(int* num_sms);

// CUDA runtime and CUTLASS versions this library was built with, or "none".
char const* device_build_info();

}  // namespace swiglu
