"""Clients' memory on the engine's GPU: opened by handle, counted, closed in the end."""

from __future__ import annotations

import logging
import threading

import torch

from service.engine.base import DeviceMemory, DeviceWindow, DType, Rows
from service.engine.cuda_device import CudaDevice
from service.engine.weights import TORCH_DTYPES
from service.errors import InvalidRequest
from service.kernels.errors import KernelError

logger = logging.getLogger(__name__)


class OpenedMemory:
    """Implements `service.engine.base.DeviceMemory`.

    Attributes:
        content: Bytes on the device; torch enqueues copies of them, and nothing else touches them.
    """

    def __init__(self, content: torch.Tensor) -> None:
        self.content = content

    @property
    def address(self) -> int:
        """Where it begins on the device."""
        return self.content.data_ptr()


class DeviceMemories:
    """All that is open, so that none stays open when the engine closes. For any thread."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._opened: dict[DeviceMemory, torch.Tensor] = {}

    def open(self, handle: bytes, index: int, nbytes: int) -> OpenedMemory:
        """The first bytes of the memory that a handle stands for.

        Args:
            handle: Of CUDA's.
            index: The device it is said to be on.
            nbytes: Wanted.

        Raises:
            InvalidRequest: another device, a handle that CUDA refuses, or too few bytes.
        """
        own = self._device.device.index
        if index != own:
            raise InvalidRequest(f"device_id: must be {own}, the engine's GPU, is {index}")
        try:
            mapped = self._device.map_memory(handle)
        except KernelError as error:
            raise InvalidRequest(
                f"raw_handle: must be one that the service can open, is not: {error}"
            ) from None
        memory = OpenedMemory(mapped[:nbytes])
        with self._lock:
            self._opened[memory] = mapped
        if mapped.nbytes < nbytes:
            self.close(memory)
            raise InvalidRequest(
                f"byte_size: must be at most {mapped.nbytes}, what was allocated, is {nbytes}"
            )
        return memory

    def close(self, memory: DeviceMemory) -> None:
        """Undo `open`, once no batch has to do with the memory any more; again is no error."""
        with self._lock:
            mapped = self._opened.get(memory)
            if mapped is None:
                return
            try:
                self._device.unmap_memory(mapped)
            except KernelError as error:
                logger.warning("shared device memory could not be closed: %s", error)
            finally:
                del self._opened[memory]

    def close_all(self) -> None:
        """Undo every `open`."""
        for memory in list(self._opened):
            self.close(memory)


def device_rows(rows: Rows, dtype: DType, width: int) -> torch.Tensor:
    """Rows on the device, aligned for dtype, as [tokens, width].

    Raises:
        TypeError: they are not in memory that such an engine has opened.
    """
    if not isinstance(rows, DeviceWindow) or not isinstance(rows.memory, OpenedMemory):
        raise TypeError("rows: must be in memory that the engine opened, are elsewhere")
    flat = rows.memory.content[rows.offset : rows.offset + rows.nbytes]
    return flat.view(TORCH_DTYPES[dtype]).view(-1, width)
