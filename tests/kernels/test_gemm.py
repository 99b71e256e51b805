"""cuBLAS by a call of our own: the same bits as torch's, on a GPU; and where there is none."""

from __future__ import annotations

import ctypes

import pytest
import torch

from service.kernels import gemm
from service.kernels.errors import CudaError, LibraryError
from service.kernels.gemm import Gemm

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_torch_without_cublas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    with pytest.raises(LibraryError, match=r"^cuBLAS: libcublas\.so\.99 must be there for torch"):
        Gemm()


class Refusing:
    """A cuBLAS that answers with a status."""

    def __init__(self, status: int) -> None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int)
        self.cublasSetMathMode = prototype(lambda: status)
        self.cublasGemmEx = prototype(lambda: 0)


def test_a_refusal_is_an_error_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm.ctypes, "PyDLL", lambda _: Refusing(7))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 1)
    x, weight, out = (torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(CudaError, match=r"^cublasGemmEx: cuBLAS status 7$"):
        Gemm()(x, weight, out)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(33, 896, 4864), (300, 896, 4864), (512, 3584, 18944)], ids=str)
def test_bits_are_those_of_torch(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    tokens, columns, inner = size
    generator = torch.Generator("cuda").manual_seed(tokens)
    x, weight = (
        torch.randn(rows, inner, generator=generator, device="cuda").to(dtype)
        for rows in (tokens, columns)
    )
    ours, torchs = (x.new_empty(tokens, columns) for _ in range(2))
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    Gemm()(x, weight, ours)
    torch.mm(x, weight.T, out=torchs)
    assert torch.equal(ours, torchs)
