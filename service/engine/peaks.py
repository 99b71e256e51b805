"""Dense peak rates of GPUs, from NVIDIA's data sheets: the denominator of MFU."""

from __future__ import annotations

from service.engine.base import DType

# Part of torch's device name → FLOP/s without sparsity (bf16 and fp16 tensor cores; FP32 CUDA
# cores). The first part that matches counts, so PCIe and NVL cards stand before SXM.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    ("H200 NVL", 835.5e12, 60e12),
    ("GH200", 989.5e12, 67e12),
    ("H200", 989.5e12, 67e12),
    ("H100 NVL", 835.5e12, 60e12),
    ("H100 PCIe", 756e12, 51e12),
    ("H100", 989.5e12, 67e12),
    ("A100", 312e12, 19.5e12),
)


def peak_flops(device_name: str, dtype: DType) -> float | None:
    """Dense peak in FLOP/s of a GPU at an element type; None for a GPU that is not listed."""
    for part, half, single in _PEAKS:
        if part in device_name:
            return single if dtype is DType.FP32 else half
    return None
