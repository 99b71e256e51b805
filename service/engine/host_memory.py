"""Page-locked host memory: for requests, for answers, and for what other rows pass through.

Only what is page-locked is copied without waiting and at the bus's full rate. torch keeps such
memory when it is dropped, and hands it out again: in the steady state none is allocated, and, as
nothing is handed out while anybody holds it, no answer ever shares memory with a later one.
"""

from __future__ import annotations

import logging
import threading
import weakref

import torch

from service.engine.base import Buffer, ModelSpec, Output
from service.engine.cuda_device import CudaDevice
from service.engine.weights import TORCH_DTYPES
from service.kernels.transfer import DIRECT_BYTES

logger = logging.getLogger(__name__)

# Stays in a core's cache between the copy that fills it and the one that empties it.
PIECE_BYTES = 2 << 20
PIECES = 4
# Held by requests and answers at a time at most, since it cannot be swapped out and torch never
# gives it back (and rounds each up to a power of two): a hundred bodies of 4 MiB and their answers,
# twice over. What comes on top is ordinary memory, which is slower to copy.
LENT_BYTES = 2 << 30


class HostMemory:
    """Memory for requests and answers, page-locked where that helps and while there is enough."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._lent_bytes = 0

    def allocate(self, nbytes: int) -> Buffer:
        """Writable memory with whatever was left in it, or zeros; freed when it is dropped."""
        if nbytes < DIRECT_BYTES or not self._may_lend(nbytes):
            return bytearray(nbytes)
        try:
            array = self._device.pinned(nbytes).numpy()
        except RuntimeError as error:
            logger.warning("%d bytes could not be page-locked: %s", nbytes, error)
            self._took_back(nbytes)
            return bytearray(nbytes)
        weakref.finalize(array, self._took_back, nbytes).atexit = False
        return array.data

    def _may_lend(self, nbytes: int) -> bool:
        with self._lock:
            fits = self._lent_bytes + nbytes <= LENT_BYTES
            self._lent_bytes += nbytes if fits else 0
            return fits

    def _took_back(self, nbytes: int) -> None:
        with self._lock:
            self._lent_bytes -= nbytes


class Pieces:
    """Page-locked memory of one batch in flight and one direction.

    Attributes:
        staging: What the library needs to copy through it.
    """

    def __init__(self, device: CudaDevice, model: ModelSpec, outputs: tuple[Output, ...]) -> None:
        """Allocate.

        Args:
            device: The GPU.
            model: What is resident.
            outputs: Which answers pass through it; inputs do where there are none.
        """
        dtype = TORCH_DTYPES[model.dtype]
        widest = max((model.width(output) for output in outputs), default=model.hidden_size)
        nbytes = max(PIECE_BYTES, -(-widest * dtype.itemsize // 64) * 64)
        memory = device.pinned(PIECES * nbytes)
        self._flat = memory.view(dtype)
        self.staging = device.staging(memory, nbytes, PIECES)

    def rows(self, count: int, width: int) -> torch.Tensor:
        """The first rows, [count, width], of the resident dtype; for what fits one piece."""
        return self._flat[: count * width].view(count, width)
