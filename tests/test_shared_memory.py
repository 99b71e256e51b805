"""Registered regions of clients' memory: names, limits, and when they are let go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from service import shared_memory
from service.engine.base import DType
from service.errors import InvalidRequest, NotFound
from service.shared_memory import RegionTable, run_to_end
from service.shared_region import Region
from service.wire.window import Window
from tests.engines import spec
from tests.servers import wait_until
from tests.shared_objects import SharedObject, open_files, shared_object

SIZE = 10_000


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(SIZE) as made:
        yield made


class Pinner:
    """What an engine with a device does."""

    direct_bytes = 64

    def __init__(self) -> None:
        self.model = spec()
        self.pinned: list[int] = []
        self.can = True
        self.gate = threading.Event()
        self.gate.set()

    def pin(self, memory: memoryview) -> bool:
        assert self.gate.wait(10)
        if self.can:
            self.pinned.append(memory.nbytes)
        return self.can

    def unpin(self, memory: memoryview) -> None:
        self.pinned.remove(memory.nbytes)


def table(pinner: Pinner | None = None, max_bytes: int = 1 << 20) -> RegionTable:
    return RegionTable(pinner, max_bytes)


def registered(regions: RegionTable, name: str, key: str, offset: int, nbytes: int) -> RegionTable:
    asyncio.run(regions.register(name, key, offset, nbytes))
    return regions


@pytest.mark.parametrize(
    ("offset", "nbytes", "words"),
    [
        (0, SIZE + 1, f"ends at byte {SIZE + 1} of {SIZE}"),
        (SIZE, 1, "must lie within its object"),
        (1 << 40, 1, "must lie within its object"),
        (-1, 1, "must not be negative"),
        (0, 0, "not without bytes"),
        (0, -1, "not without bytes"),
        (0, (1 << 20) + 1, "must be at most 1048576, what is left of the 1048576 bytes"),
    ],
)
def test_a_region_lies_within_its_object(
    memory: SharedObject, offset: int, nbytes: int, words: str
) -> None:
    before = open_files()
    regions = table()
    with pytest.raises(InvalidRequest, match=words):
        registered(regions, "r", memory.key, offset, nbytes)
    assert regions.count == 0
    assert open_files() <= before  # others' may be closed meanwhile


def test_a_name_is_given_once(memory: SharedObject) -> None:
    regions = registered(table(), "r", memory.key, 0, 10)
    with pytest.raises(InvalidRequest, match="must not be registered yet, 'r' is"):
        registered(regions, "r", memory.key, 0, 10)
    for name in ("", "x" * 256):
        with pytest.raises(InvalidRequest, match="region: must have 1 to 255 characters"):
            registered(regions, name, memory.key, 0, 10)
    regions.unregister(Region, "r")
    assert registered(regions, "r", memory.key, 5, 20).nbytes == 20


def test_all_regions_together_have_a_limit(
    memory: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = registered(table(max_bytes=150), "a", memory.key, 0, 100)
    with pytest.raises(InvalidRequest, match="at most 50, what is left"):
        registered(regions, "b", memory.key, 0, 51)
    registered(regions, "b", memory.key, 0, 50)
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    with pytest.raises(InvalidRequest, match="at most 2 may be registered"):
        registered(regions, "c", memory.key, 0, 1)


@pytest.mark.parametrize(("pinner", "most"), [(None, 4), (Pinner(), 2)])
def test_regions_hold_a_quarter_of_the_open_files(
    memory: SharedObject, monkeypatch: pytest.MonkeyPatch, pinner: Pinner | None, most: int
) -> None:
    regions = table(pinner)

    async def use() -> None:
        await asyncio.to_thread(lambda: None)  # whose thread has files of its own
        opened = open_files()
        for number in range(most):
            await regions.register(f"r{number}", memory.key, 0, 500)
        assert open_files() - opened == 4
        with pytest.raises(InvalidRequest, match=f"at most {most} .* where 16 files may be open"):
            await regions.register("another", memory.key, 0, 500)
        regions.unregister_all()
        await asyncio.to_thread(wait_until, lambda: open_files() <= opened)

    monkeypatch.setattr(shared_memory, "open_files_limit", lambda: 16)
    asyncio.run(use())


def test_regions_are_shown_as_they_were_registered(memory: SharedObject) -> None:
    regions = registered(table(), "r", memory.key, 100, 50)
    (status,) = regions.status(Region, "r")
    assert (status.name, status.key) == ("r", memory.key)
    assert (status.offset, status.nbytes) == (100, 50)
    assert (regions.count, regions.nbytes) == (1, 50)


def test_unregistering(memory: SharedObject) -> None:
    before = open_files()
    regions = table()
    for name in ("a", "b", "c"):
        registered(regions, name, memory.key, 0, 10)
    regions.unregister(Region, "a")
    regions.unregister(Region, "a")
    assert [region.name for region in regions.status(Region)] == ["b", "c"]
    with pytest.raises(NotFound, match="'a' is not"):
        regions.status(Region, "a")
    regions.unregister_all()
    assert regions.status(Region) == []
    assert open_files() <= before  # others' may be closed meanwhile


def test_windows_lie_within_their_region(memory: SharedObject) -> None:
    regions = registered(table(), "r", memory.key, 100, 50)
    for window in (Window("r", 0, 51), Window("r", 50, 1), Window("r", 2**61, 2**61)):
        with pytest.raises(InvalidRequest, match=r"outputs\[0\].*must end within the 50 bytes"):
            regions.use(window, "outputs[0]")
    with pytest.raises(InvalidRequest, match="'s' is not"):
        regions.use(Window("s", 0, 1), "inputs[0]")


def test_whoever_uses_a_region_keeps_it(memory: SharedObject) -> None:
    before = open_files()
    regions = registered(table(), "r", memory.key, 0, 10)
    region = regions.use(Window("r", 0, 10), "inputs[0]")
    regions.unregister(Region, "r")
    memory.path.unlink()
    region.write(0, b"0123456789")
    target = memoryview(bytearray(10))
    region.read(0, target)
    assert target == b"0123456789"
    region.release()
    assert open_files() <= before  # others' may be closed meanwhile


def test_a_device_that_pins_gets_the_memory_itself(memory: SharedObject) -> None:
    async def use() -> None:
        pinner = Pinner()
        regions = table(pinner)
        await regions.register("r", memory.key, 4097, 500)
        assert pinner.pinned == [500]
        region = regions.use(Window("r", 0, 500), "inputs[0]")
        view = region.direct(Window("r", 3, 64), DType.FP32)
        view[:2] = b"ab"
        assert memory.read(4100, 3) == b"ab\0"
        assert region.direct(Window("r", 3, 63), DType.FP32) is None
        assert region.direct(Window("r", 3, 64), DType.FP16) is None
        regions.unregister_all()
        assert pinner.pinned == [500], "still in use"
        region.release()
        await asyncio.to_thread(wait_until, lambda: pinner.pinned == [])
        assert view[:2] == b"ab", "mapped as long as somebody looks at it"

    asyncio.run(use())


def test_truncation_is_seen_before_the_device_reads(memory: SharedObject) -> None:
    regions = registered(table(Pinner()), "r", memory.key, 0, SIZE)
    region = regions.use(Window("r", 0, SIZE), "inputs[0]")
    memory.truncate(4096)
    assert region.direct(Window("r", 0, 4096), DType.FP32) is not None
    with pytest.raises(InvalidRequest, match="must lie within its object"):
        region.direct(Window("r", 0, 4097), DType.FP32)


def test_memory_that_cannot_be_pinned_is_copied(memory: SharedObject) -> None:
    pinner = Pinner()
    pinner.can = False
    regions = registered(table(pinner), "r", memory.key, 0, 500)
    assert regions.status(Region)[0].direct(Window("r", 0, 500), DType.FP32) is None
    regions.unregister(Region, "r")


def test_a_name_is_taken_while_its_memory_is_pinned(memory: SharedObject) -> None:
    async def use() -> None:
        pinner = Pinner()
        pinner.gate.clear()
        regions = table(pinner, max_bytes=600)
        first = asyncio.create_task(regions.register("r", memory.key, 0, 500))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="must not be registered yet"):
            await regions.register("r", memory.key, 0, 10)
        with pytest.raises(InvalidRequest, match="at most 100"):
            await regions.register("s", memory.key, 0, 101)
        first.cancel()
        await asyncio.sleep(0.01)
        assert not first.done()
        pinner.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert regions.count == 0
        await asyncio.to_thread(wait_until, lambda: pinner.pinned == [])

    asyncio.run(use())


def test_work_in_a_thread_is_waited_for_however_often_it_is_cancelled() -> None:
    async def use() -> None:
        gate, ended = threading.Event(), []

        def work() -> None:
            gate.wait(10)
            ended.append(True)

        task = asyncio.create_task(run_to_end(work))
        for _ in range(3):
            await asyncio.sleep(0.005)
            task.cancel()
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended
        with pytest.raises(ZeroDivisionError):
            await run_to_end(lambda: 1 // 0)

    asyncio.run(use())
