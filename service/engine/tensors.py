"""Requests' buffers as torch tensors, without copies and without torch's warnings."""

from __future__ import annotations

import torch

from service.engine.base import DType
from service.engine.weights import TORCH_DTYPES


def as_rows(buffer: memoryview, dtype: DType, width: int) -> torch.Tensor:
    """A view of a C-contiguous buffer as [tokens, width] on the CPU.

    torch has no read-only tensors and warns where one would be needed, so a read-only buffer is
    copied; a slot of the arena is writable and is not.
    """
    flat = bytearray(buffer) if buffer.readonly else buffer.cast("B")
    return torch.frombuffer(flat, dtype=TORCH_DTYPES[dtype]).view(-1, width)


class GrowingBuffer:
    """Memory reused from batch to batch, as large as the largest asked for.

    Nothing in it may be handed out: what a client gets is copied from here.
    """

    def __init__(self, device: torch.device) -> None:
        self._flat = torch.empty(0, dtype=torch.float32, device=device)

    def rows(self, tokens: int, width: int) -> torch.Tensor:
        """[tokens, width] of FP32, with whatever was left in it."""
        if self._flat.numel() < tokens * width:
            # Let go first, so that the old and the new buffer need not fit side by side.
            self.clear()
            self._flat = self._flat.new_empty(tokens * width)
        return self._flat[: tokens * width].view(tokens, width)

    def clear(self) -> None:
        """Give the memory back."""
        self._flat = self._flat.new_empty(0)
