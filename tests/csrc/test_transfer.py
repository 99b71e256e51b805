"""Rows between many buffers and one, on a device that copies as late as it is allowed to."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from pathlib import Path

import pytest

from service.kernels.errors import CudaError, InvalidArgument, LibraryError
from service.kernels.library import Library
from service.kernels.transfer import DIRECT_BYTES, Transfer, pack_spans
from tests.csrc.conftest import CSRC, HOST_SOURCES, WARNINGS
from tests.kernels.conftest import build_recorder

PIECE, PIECES = 100, 3
# Handles of events; the staging's own begin at 1.
BEGIN, ARRIVED, AFTER, END = 1001, 1002, 1003, 1004
STREAM = 7


@pytest.fixture(scope="module")
def path(compiler, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("transfer") / "libswiglu.so"
    sources = [source for source in HOST_SOURCES if source.name != "no_device_copies.cpp"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS]
    includes = [f"-I{CSRC / 'include'}", f"-I{CSRC / 'src'}"]
    late = Path(__file__).with_name("late_copies.cpp")
    subprocess.run([compiler, *flags, *includes, *sources, late, "-o", path], check=True)
    return path


class Memory:
    """Numbered bytes, or zeros, and where they are."""

    def __init__(self, nbytes: int, seed: int | None = None) -> None:
        content = bytes(nbytes) if seed is None else bytes((seed + i) % 251 for i in range(nbytes))
        self._array = (ctypes.c_char * nbytes).from_buffer_copy(content)
        self.nbytes = nbytes
        self.address = ctypes.addressof(self._array)

    @property
    def content(self) -> bytes:
        return self._array.raw


class Device:
    def __init__(self, path: Path) -> None:
        self.transfer = Transfer(Library(path))
        self.functions = self.transfer.library.functions
        self.functions.swiglu_test_copies.restype = ctypes.c_int64
        self.functions.swiglu_test_events.restype = ctypes.c_int64
        self.pinned = Memory(PIECE * PIECES)
        self.staging = self.transfer.staging(self.pinned.address, PIECE, PIECES)
        self.lock(self.pinned)
        self.copies()

    def lock(self, memory: Memory) -> None:
        address, nbytes = ctypes.c_void_p(memory.address), ctypes.c_int64(memory.nbytes)
        self.functions.swiglu_test_lock(address, nbytes)

    def copies(self) -> int:
        return self.functions.swiglu_test_copies()

    def wait(self, event: int) -> None:
        self.functions.swiglu_test_wait(ctypes.c_void_p(event))

    def send(self, memories: list[Memory]) -> bytes:
        x = Memory(sum(memory.nbytes for memory in memories))
        self.transfer.send(self.staging, spans_of(memories), x.address, STREAM, BEGIN, ARRIVED)
        self.wait(ARRIVED)
        return x.content

    def receive(self, content: Memory, memories: list[Memory]) -> None:
        host_s = self.transfer.receive(
            self.staging, content.address, spans_of(memories), STREAM, AFTER, END
        )
        assert 0 <= host_s < 1


def spans_of(memories: list[Memory]) -> bytes:
    return pack_spans([number for one in memories for number in (one.address, one.nbytes)])


@pytest.fixture
def device(path: Path) -> Device:
    return Device(path)


SIZES = [
    (1,),
    (100,),
    (101,),
    (30, 30, 30, 30),
    (1, 999, 2),
    (1000,),
    (7,) * 100,
    (DIRECT_BYTES,),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_arrive_one_behind_the_other(device: Device, sizes: tuple[int, ...]) -> None:
    for first in range(2):
        memories = [Memory(size, seed + first) for seed, size in enumerate(sizes)]
        assert device.send(memories) == b"".join(memory.content for memory in memories)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_answers_are_dealt_out_in_order(device: Device, sizes: tuple[int, ...]) -> None:
    for first in range(2):
        content = Memory(sum(sizes), first)
        memories = [Memory(size) for size in sizes]
        device.receive(content, memories)
        assert b"".join(memory.content for memory in memories) == content.content


@pytest.mark.parametrize(("sizes", "copies"), [((30, 30, 40), 1), ((30, 30, 41), 2), ((250,), 3)])
def test_what_is_short_shares_a_piece(device: Device, sizes: tuple[int, ...], copies: int) -> None:
    device.send([Memory(size, 1) for size in sizes])
    assert device.copies() == copies
    device.receive(Memory(sum(sizes), 1), [Memory(size) for size in sizes])
    assert device.copies() == copies


def test_what_is_long_and_page_locked_is_copied_from_and_to_where_it_is(device: Device) -> None:
    large = Memory(DIRECT_BYTES, 5)
    device.lock(large)
    memories = [Memory(10, 1), large, Memory(20, 2), Memory(10, 3)]
    assert device.send(memories) == b"".join(memory.content for memory in memories)
    # Nobody's piece reaches over the large one.
    assert device.copies() == 3
    content = Memory(DIRECT_BYTES + 40, 9)
    device.receive(content, memories)
    assert b"".join(memory.content for memory in memories) == content.content
    assert device.copies() == 3


class Part(Memory):
    """Some bytes of another's."""

    def __init__(self, whole: Memory, first: int, nbytes: int) -> None:
        self._whole, self._first = whole, first
        self.nbytes = nbytes
        self.address = whole.address + first

    @property
    def content(self) -> bytes:
        return self._whole.content[self._first : self._first + self.nbytes]


def test_what_lies_one_behind_the_other_is_copied_at_once(device: Device) -> None:
    whole = Memory(2 * DIRECT_BYTES, 5)
    device.lock(whole)
    half = DIRECT_BYTES // 2
    memories = [Memory(10, 1), *(Part(whole, half * i, half) for i in range(4)), Memory(20, 2)]
    assert device.send(memories) == b"".join(memory.content for memory in memories)
    assert device.copies() == 3
    content = Memory(2 * DIRECT_BYTES + 30, 9)
    device.receive(content, memories)
    assert b"".join(memory.content for memory in memories) == content.content
    assert device.copies() == 3


def test_parts_too_short_together_share_a_piece_with_others(device: Device) -> None:
    whole = Memory(60, 5)
    device.lock(whole)
    memories = [Memory(10, 1), *(Part(whole, 20 * i, 20) for i in range(3)), Memory(20, 2)]
    assert device.send(memories) == b"".join(memory.content for memory in memories)
    assert device.copies() == 1


@pytest.mark.parametrize(("locks", "nbytes"), [(False, DIRECT_BYTES), (True, DIRECT_BYTES - 1)])
def test_nothing_else_is(device: Device, locks: bool, nbytes: int) -> None:
    memory = Memory(nbytes, 5)
    if locks:
        device.lock(memory)
    device.send([memory])
    assert device.copies() == -(-nbytes // PIECE)


def test_the_caller_may_reuse_what_went_through_pieces_at_once(device: Device) -> None:
    memory = Memory(50, 3)
    before = memory.content
    x = Memory(50)
    device.transfer.send(device.staging, spans_of([memory]), x.address, STREAM, BEGIN, ARRIVED)
    ctypes.memset(memory.address, 0, 50)
    device.wait(ARRIVED)
    assert x.content == before


@pytest.mark.parametrize("no_times", [0, 1, 5])
def test_spinning_ends_when_the_event_has_passed(device: Device, no_times: int) -> None:
    device.functions.swiglu_test_not_yet(ctypes.c_int64(no_times))
    assert device.transfer.spin(AFTER, 60.0)
    device.functions.swiglu_test_questions.restype = ctypes.c_int64
    assert device.functions.swiglu_test_questions() == no_times + 1


def test_spinning_ends_when_its_time_is_over(device: Device) -> None:
    device.functions.swiglu_test_not_yet(ctypes.c_int64(1 << 40))
    for seconds in (0.0, 0.02):
        began = time.perf_counter()
        assert not device.transfer.spin(AFTER, seconds)
        assert seconds <= time.perf_counter() - began < seconds + 5


def test_nobody_enqueues_in_anothers_turn(device: Device) -> None:
    memory, done = Memory(50, 3), threading.Event()

    def send() -> None:
        device.send([memory])
        done.set()

    thread = threading.Thread(target=send)
    with device.transfer.turn:
        thread.start()
        assert not done.wait(0.05)
        assert device.copies() == 0
    assert done.wait(20)
    thread.join()
    assert device.copies() == 1


def test_turns_are_given_back_whatever_happens(device: Device) -> None:
    device.functions.swiglu_test_refuse(1)
    try:
        for _ in range(2):
            with pytest.raises(CudaError):
                device.send([Memory(50)])
            with pytest.raises(CudaError):
                device.receive(Memory(50), [Memory(50)])
        with pytest.raises(KeyError), device.transfer.turn:
            raise KeyError
    finally:
        device.functions.swiglu_test_refuse(0)
    device.send([Memory(50)])


def test_a_refused_copy_is_an_error_with_cudas_words(device: Device) -> None:
    memory = Memory(50, 3)
    device.functions.swiglu_test_refuse(1)
    try:
        with pytest.raises(CudaError, match=r"^cudaMemcpyAsync: CUDA error: refused$"):
            device.send([memory])
        with pytest.raises(CudaError, match="refused"):
            device.receive(memory, [Memory(50)])
    finally:
        device.functions.swiglu_test_refuse(0)
    assert device.send([memory]) == memory.content


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ([], "count: must be 1 or more, is 0"),
        ([0, 5], "host of a span: must be a pointer, is NULL"),
        ([1, 0], "bytes of a span: must be 1 or more, is 0"),
    ],
)
def test_spans_that_are_none_are_refused(device: Device, numbers: list[int], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{sentence}$"):
        device.transfer.send(device.staging, pack_spans(numbers), 1, STREAM, BEGIN, ARRIVED)


@pytest.mark.parametrize(("piece", "count"), [(0, 1), (1, 0)])
def test_a_staging_needs_pieces(device: Device, piece: int, count: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"must be 1 or more, are {piece} and {count}$"):
        device.transfer.staging(device.pinned.address, piece, count)


def test_a_staging_lets_go_of_its_events(device: Device) -> None:
    before = device.functions.swiglu_test_events()
    staging = device.transfer.staging(device.pinned.address, PIECE, PIECES)
    assert device.functions.swiglu_test_events() == before + PIECES
    del staging
    assert device.functions.swiglu_test_events() == before


def test_a_library_without_these_functions_is_refused(tmp_path: Path) -> None:
    library = Library(build_recorder(tmp_path / "libswiglu.so"))
    with pytest.raises(LibraryError, match=r"must have swiglu_staging_create, has not; `make ker"):
        Transfer(library)


def test_the_header_says_the_same_length(compiler) -> None:
    text = (CSRC / "include" / "swiglu" / "transfer.h").read_text()
    assert f"#define SWIGLU_DIRECT_BYTES {DIRECT_BYTES}\n" in text
