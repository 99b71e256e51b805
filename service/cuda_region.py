"""A client's memory on the engine's own GPU, registered by a handle of CUDA's.

No address of it leaves the engine: what a request gets is a `DeviceWindow`, which is no buffer, so
that no processor can read or write through it.
"""

from __future__ import annotations

import asyncio

from service.engine.base import DeviceMemory, DeviceWindow, DType, OpensDeviceMemory
from service.errors import InvalidRequest
from service.wire.window import Window


class CudaRegion:
    """One registered region; its memory is open while anybody uses it.

    Attributes:
        name: What requests call it.
        device: Index of the GPU, as the client gave it.
        nbytes: Length.
    """

    def __init__(self, name: str, device: int, nbytes: int, opener: OpensDeviceMemory) -> None:
        """Without memory, until `open` is called."""
        self.name = name
        self.device = device
        self.nbytes = nbytes
        self._opener = opener
        self._users = 1
        self._memory: DeviceMemory | None = None
        self._closed = asyncio.Event()

    @property
    def identity(self) -> tuple[str, int, int]:
        """All memory of the device is one object, in which addresses are the offsets."""
        return ("device", self.device, 0)

    @property
    def offset(self) -> int:
        """Where it begins on the device."""
        assert self._memory is not None
        return self._memory.address

    def open(self, handle: bytes) -> None:
        """Open the memory; off the event loop, because CUDA may wait for the device.

        Raises:
            InvalidRequest: the handle or its device cannot be used, or has fewer bytes.
        """
        self._memory = self._opener.open_device_memory(handle, self.device, self.nbytes)

    def window(self, window: Window, dtype: DType, where: str) -> DeviceWindow:
        """The window's part of the memory.

        Args:
            window: Lies in the region.
            dtype: Element type of what lies there.
            where: What it is for, as the prefix of a message: `inputs[0]`.

        Raises:
            InvalidRequest: its elements would not be aligned.
        """
        address = self.offset + window.offset
        if address % dtype.itemsize:
            raise InvalidRequest(
                f"{where}.parameters.shared_memory_offset: must be a multiple of "
                f"{dtype.itemsize} for {dtype.value} in CUDA shared memory, is {window.offset}"
            )
        assert self._memory is not None
        return DeviceWindow(self._memory, window.offset, window.nbytes)

    def acquire(self) -> CudaRegion:
        """Keep it open until `release`, whether it is still registered or not."""
        self._users += 1
        return self

    def release(self) -> None:
        """Undo one `acquire`, or the registration."""
        self._users -= 1
        if self._users:
            return
        memory = self._memory
        if memory is None:
            self._closed.set()
            return
        # Off the event loop, as opening was.
        closing = asyncio.get_running_loop().run_in_executor(
            None, self._opener.close_device_memory, memory
        )
        closing.add_done_callback(lambda _: self._closed.set())

    async def closed(self) -> None:
        """Wait until the last has released it and its memory is closed."""
        await self._closed.wait()
