"""Tensors of requests in memory that their clients share, instead of in body and answer."""

from __future__ import annotations

from collections.abc import Callable

from service.batching.admission import Lease, Slot
from service.cuda_region import CudaRegion
from service.engine.base import DType, Rows
from service.errors import InvalidRequest, TooLarge
from service.shared_memory import AnyRegion, RegionTable, run_to_end
from service.shared_region import Region, overlap
from service.wire.window import Window

# 10 GB/s; up to here a copy delays the event loop by less than handing it to a thread takes.
_OFF_LOOP_BYTES = 512 << 10


class _SharedSlot:
    """A slot that goes back when both the engine and the request's handler have let go of it."""

    __slots__ = ("_holders", "_slot")

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._holders = 2

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._slot.release()


class SharedTensors:
    """Where one request's input comes from and its answer goes to; close it when both are done.

    Attributes:
        output: Where the engine writes the answer: the client's memory, on the device too, or a
            slot from which `write` copies it there; None for an answer that is sent.
    """

    def __init__(self, regions: RegionTable, moved: Callable[[str, int], None]) -> None:
        """Without windows, until `open` is called.

        Args:
            regions: Those that are registered.
            moved: Told when bytes went `in` from clients' memory, or `out` to it.
        """
        self._regions = regions
        self._moved = moved
        self._source: tuple[AnyRegion, Window] | None = None
        self._target: tuple[AnyRegion, Window] | None = None
        self._slot: _SharedSlot | None = None
        self.output: Rows | None = None

    def open(self, source: Window | None, target: Window | None, answer_bytes: int) -> None:
        """Find the regions, and keep them whatever becomes of their names.

        Args:
            source: Of the input.
            target: Of the output.
            answer_bytes: That have to fit into target.

        Raises:
            InvalidRequest: not registered, out of bounds, too small, or one over the other.
        """
        if source is not None:
            self._source = (self._use(source, "inputs[0]"), source)
        if target is not None:
            self._target = (self._use(target, "outputs[0]"), target)
            if answer_bytes > target.nbytes:
                raise InvalidRequest(
                    "outputs[0].parameters.shared_memory_byte_size: must be at least "
                    f"{answer_bytes} for the answer, is {target.nbytes}"
                )
            # The rest of the window is none of ours.
            self._target = (self._target[0], Window(target.region, target.offset, answer_bytes))
        if self._source and self._target and overlap(self._source, self._target):
            # A batch that fails half way is tried again, and needs its inputs for that.
            raise InvalidRequest(
                "outputs[0].parameters: the output's bytes must not be the input's, they overlap"
            )

    async def read(self, lease: Lease, tokens: int, dtype: DType, max_bytes: int) -> Rows | None:
        """The input, if it is in shared memory: in a slot, or where it is if the device reads it.

        Args:
            lease: Gets the budget that a body of the same size would have, and the slot.
            tokens: Rows.
            dtype: Element type.
            max_bytes: Of the input.

        Raises:
            TooLarge: it is larger than max_bytes.
            QueueFull: a bound of the queue would be passed.
            InvalidRequest: the object is truncated, or the window not aligned.
        """
        if self._source is None:
            return None
        region, window = self._source
        if window.nbytes > max_bytes:
            raise TooLarge(
                f"inputs[0].parameters.shared_memory_byte_size: must be at most {max_bytes}, is "
                f"{window.nbytes}; raise max_body_bytes (MLP_MAX_BODY_BYTES)"
            )
        lease.grow(tokens, window.nbytes)
        data = _direct(region, window, dtype, "inputs[0]")
        if data is not None:
            lease.at_end(region.acquire().release)
        else:
            assert isinstance(region, Region)
            lease.exchange_slot(window.nbytes)
            data = slot = lease.slot.view
            if window.nbytes <= _OFF_LOOP_BYTES:
                region.read(window.offset, slot)
            else:
                # To its end, because the slot is somebody else's once the request is over.
                await run_to_end(lambda: region.read(window.offset, slot))
        self._moved("in", window.nbytes)
        return data

    def place(self, lease: Lease, dtype: DType) -> None:
        """Choose where the engine writes the answer.

        Raises:
            InvalidRequest: the object is truncated, or the window not aligned.
        """
        if self._target is None:
            return
        region, window = self._target
        self.output = _direct(region, window, dtype, "outputs[0]")
        if self.output is not None:
            lease.at_end(region.acquire().release)
            return
        # Not fresh memory, whose pages cost as much as the copy: nobody keeps it afterwards.
        slot = lease.another_slot(window.nbytes)
        self._slot = _SharedSlot(slot)
        lease.at_end(self._slot.release)
        self.output = slot.view

    async def write(self, data: memoryview) -> None:
        """Copy the answer to where the client wants it, unless the device has.

        Raises:
            InvalidRequest: the object is truncated.
        """
        if self._target is None:
            return
        region, window = self._target
        if self._slot is not None:
            assert isinstance(region, Region)
            if window.nbytes <= _OFF_LOOP_BYTES:
                region.write(window.offset, data)
            else:
                await run_to_end(lambda: region.write(window.offset, data))
        self._moved("out", window.nbytes)

    def close(self) -> None:
        """Let go of the regions."""
        for found in (self._source, self._target):
            if found is not None:
                found[0].release()
        self._source = self._target = None
        if self._slot is not None:
            self._slot.release()

    def _use(self, window: Window, where: str) -> AnyRegion:
        return self._regions.use(window, where)


def _direct(region: AnyRegion, window: Window, dtype: DType, where: str) -> Rows | None:
    """The window's memory where the device alone copies from or to it, else None."""
    if isinstance(region, CudaRegion):
        return region.window(window, dtype, where)
    return region.direct(window, dtype)
