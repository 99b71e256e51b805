"""Registered regions of a GPU's memory: names, alignment, and when they are closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from service.cuda_region import CudaRegion
from service.engine.base import DeviceWindow, DType
from service.errors import InvalidRequest, NotFound
from service.local_regions import LocalRegions
from service.shared_memory import RegionTable
from service.shared_region import Region, overlap
from service.wire.window import Window
from tests.shared_objects import shared_object

HANDLE = b"h" * 64
BASE = 0x7F00_0000_1000


class Memory:
    def __init__(self, address: int) -> None:
        self.address = address


class Opener:
    """What an engine with a GPU does; a handle's first byte moves the address."""

    def __init__(self) -> None:
        self.opened: list[Memory] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def open_device_memory(self, handle: bytes, device: int, nbytes: int) -> Memory:
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.opened.append(Memory(BASE + handle[0]))
        return self.opened[-1]

    def close_device_memory(self, memory: Memory) -> None:
        assert self.gate.wait(10)
        self.opened.remove(memory)


def run(test: Callable[[Opener, RegionTable, LocalRegions], Awaitable[None]]) -> None:
    async def with_table() -> None:
        opener = Opener()
        table = RegionTable(None, 100, opener)
        await test(opener, table, LocalRegions(table))

    asyncio.run(with_table())


def test_a_region_is_shown_used_and_forgotten() -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        assert regions.cuda is not None
        # No page of this service's memory: beyond the limit for those.
        await regions.cuda.register("c", HANDLE, 0, 1000)
        assert await regions.cuda.status("c") == [("c", 0, 1000)]
        assert await regions.status(None) == []
        assert (table.count, table.nbytes) == (1, 1000)
        region = table.use(Window("c", 8, 992), "inputs[0]")
        assert isinstance(region, CudaRegion)
        window = region.window(Window("c", 8, 992), DType.FP32, "inputs[0]")
        assert window == DeviceWindow(opener.opened[0], 8, 992)
        region.release()
        await regions.cuda.unregister("none")
        await regions.cuda.unregister("c")
        assert opener.opened == []
        with pytest.raises(NotFound, match="'c' is not"):
            await regions.cuda.status("c")

    run(test)


def test_forgetting_waits_until_nobody_uses_the_memory() -> None:
    """Behind the answer a client may free it, which would be fatal earlier."""

    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        assert regions.cuda is not None
        await regions.cuda.register("c", HANDLE, 0, 10)
        used = table.use(Window("c", 0, 10), "inputs[0]")
        forgetting = asyncio.ensure_future(regions.cuda.unregister(None))
        await asyncio.sleep(0.05)
        assert await regions.cuda.status(None) == []
        with pytest.raises(InvalidRequest, match="must be registered, 'c' is not"):
            table.use(Window("c", 0, 10), "inputs[0]")
        assert len(opener.opened) == 1
        opener.gate.clear()
        used.release()
        await asyncio.sleep(0.05)
        assert not forgetting.done()
        opener.gate.set()
        await asyncio.wait_for(forgetting, 10)
        assert opener.opened == []

    run(test)


def test_both_kinds_share_their_names_and_nothing_else() -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        assert regions.cuda is not None
        with shared_object(100) as made:
            await regions.cuda.register("c", HANDLE, 0, 10)
            await regions.register("s", made.key, 0, 100)
            with pytest.raises(InvalidRequest, match="must not be registered yet, 'c' is"):
                await regions.register("c", made.key, 0, 10)
            with pytest.raises(InvalidRequest, match="must not be registered yet, 's' is"):
                await regions.cuda.register("s", HANDLE, 0, 10)
            with pytest.raises(NotFound):
                await regions.status("c")
            with pytest.raises(NotFound):
                await regions.cuda.status("s")
            await regions.unregister("c")
            await regions.cuda.unregister("s")
            assert table.count == 2
            await regions.unregister(None)
            assert [one.name for one in await regions.cuda.status(None)] == ["c"]
            await regions.register("s", made.key, 0, 100)
            await regions.cuda.unregister(None)
            assert [one.name for one in await regions.status(None)] == ["s"]
            await regions.cuda.register("c", HANDLE, 0, 10)
            table.unregister_all()
            assert table.count == 0

    run(test)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_region_has_bytes(nbytes: int) -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        with pytest.raises(InvalidRequest, match=f"byte_size: must be 1 or more, is {nbytes}"):
            await table.register_cuda("c", HANDLE, 0, nbytes)
        assert opener.opened == []

    run(test)


def test_what_cannot_be_opened_is_not_registered() -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        opener.error = InvalidRequest("raw_handle: no")
        with pytest.raises(InvalidRequest, match="raw_handle: no"):
            await table.register_cuda("c", HANDLE, 0, 10)
        assert table.count == 0
        opener.error = None
        await table.register_cuda("c", HANDLE, 0, 10)
        assert table.count == 1

    run(test)


def test_a_client_that_leaves_while_memory_is_opened_leaves_nothing_open() -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        opener.gate.clear()
        registering = asyncio.ensure_future(table.register_cuda("c", HANDLE, 0, 10))
        await asyncio.sleep(0.05)
        with pytest.raises(InvalidRequest, match="must not be registered yet, 'c' is"):
            await table.register_cuda("c", HANDLE, 0, 10)
        registering.cancel()
        await asyncio.sleep(0.05)
        assert not registering.done()
        opener.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await registering
        await asyncio.get_running_loop().shutdown_default_executor()
        assert (table.count, opener.opened) == (0, [])

    run(test)


@pytest.mark.parametrize(
    ("first", "dtype", "offset", "rule"),
    [
        (0, DType.BF16, 1, "a multiple of 2 for bf16 in CUDA shared memory, is 1"),
        (0, DType.FP32, 6, "a multiple of 4 for fp32 in CUDA shared memory, is 6"),
        (2, DType.FP32, 4, "a multiple of 4"),
        (2, DType.FP32, 2, ""),
        (0, DType.FP16, 6, ""),
    ],
)
def test_elements_are_aligned_on_the_device(
    first: int, dtype: DType, offset: int, rule: str
) -> None:
    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        await table.register_cuda("c", bytes([first]) * 64, 0, 100)
        (region,) = table.status(CudaRegion)
        window = Window("c", offset, 8)
        if rule:
            words = f"^outputs.0..parameters.shared_memory_offset: must be {rule}"
            with pytest.raises(InvalidRequest, match=words):
                region.window(window, dtype, "outputs[0]")
        else:
            assert region.window(window, dtype, "outputs[0]").offset == offset

    run(test)


def test_windows_overlap_by_their_addresses() -> None:
    """Whatever names, handles and devices they were registered by."""

    async def test(opener: Opener, table: RegionTable, regions: LocalRegions) -> None:
        for name, first, device in (("a", 0, 0), ("again", 0, 0), ("b", 64, 0), ("other", 0, 1)):
            await table.register_cuda(name, bytes([first]) * 64, device, 100)
        found = {region.name: region for region in table.status(CudaRegion)}

        def meet(first: tuple[str, int, int], second: tuple[str, int, int]) -> bool:
            one, other = (
                (found[name], Window(name, offset, nbytes))
                for name, offset, nbytes in (first, second)
            )
            assert overlap(one, other) == overlap(other, one)
            return overlap(one, other)

        assert meet(("a", 0, 10), ("again", 9, 10))
        assert not meet(("a", 0, 10), ("again", 10, 10))
        assert meet(("a", 0, 65), ("b", 0, 1))
        assert not meet(("a", 0, 64), ("b", 0, 1))
        assert not meet(("a", 0, 10), ("other", 0, 10))
        with shared_object(100) as made:
            await table.register("s", made.key, 0, 100)
            (system,) = table.status(Region)
            assert not overlap((system, Window("s", 0, 100)), (found["a"], Window("a", 0, 100)))
            table.unregister_all()

    run(test)
