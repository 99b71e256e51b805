"""cuBLAS's matrix product by torch's own handle, in a call that keeps the interpreter's lock.

out = x · weightᵀ

The kernel and its bits are those of torch.mm, which lets go of the lock and waits to get it back:
where threads compete for it that takes longer than many a product, and what is to follow it on the
stream comes too late.
"""

from __future__ import annotations

import ctypes

import torch

from service.kernels.errors import CudaError, LibraryError

# cublasOperation_t, cudaDataType_t, cublasComputeType_t, cublasGemmAlgo_t and cublasMath_t.
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1
_TYPES = {torch.bfloat16: 14, torch.float16: 2}
_COMPUTE_32F = 68
_DEFAULT_TENSOR_OP = 99
# Or it may add up partial sums in the narrow type.
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16

_HANDLE, _INT = ctypes.c_void_p, ctypes.c_int
_MATRIX = (ctypes.c_void_p, _INT, _INT)  # address, type, elements from row to row


class Gemm:
    """Products of bf16 or fp16 with FP32 sums."""

    def __init__(self) -> None:
        """Find the library that torch has loaded.

        Raises:
            LibraryError: it is not there.
        """
        name = f"libcublas.so.{(torch.version.cuda or '').partition('.')[0]}"
        try:
            library = ctypes.PyDLL(name)
            self._gemm, self._set_math_mode = library.cublasGemmEx, library.cublasSetMathMode
        except (OSError, AttributeError) as error:
            raise LibraryError(f"cuBLAS: {name} must be there for torch, is not: {error}") from None
        self._gemm.argtypes = (
            *(_HANDLE, _INT, _INT, _INT, _INT, _INT),
            *(ctypes.c_void_p, *_MATRIX, *_MATRIX, ctypes.c_void_p, *_MATRIX),
            *(_INT, _INT),
        )
        self._set_math_mode.argtypes = (_HANDLE, _INT)
        self._one, self._zero = (ctypes.byref(ctypes.c_float(number)) for number in (1, 0))

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue on the current stream.

        Args:
            x: [tokens, K] bf16 or fp16 on the current CUDA device, contiguous.
            weight: [N, K], likewise.
            out: [tokens, N], likewise; must not overlap an input.

        Raises:
            CudaError: cuBLAS refused.
        """
        (tokens, inner), columns = x.shape, weight.shape[0]
        kind = _TYPES[x.dtype]
        # Of this thread, with its stream and workspace.
        handle = torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        # cuBLAS's matrices are columns one behind the other, so it computes outᵀ = weight · xᵀ.
        status = self._set_math_mode(handle, _DISALLOW_REDUCED_PRECISION_REDUCTION) or self._gemm(
            *(handle, _TRANSPOSED, _NOT_TRANSPOSED, columns, tokens, inner),
            *(self._one, weight.data_ptr(), kind, inner, x.data_ptr(), kind, inner),
            *(self._zero, out.data_ptr(), kind, columns),
            *(_COMPUTE_32F, _DEFAULT_TENSOR_OP),
        )
        if status:
            raise CudaError(f"cublasGemmEx: cuBLAS status {status}")
