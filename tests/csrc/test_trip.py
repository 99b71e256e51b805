"""A whole batch in one call, on a device that does everything as late as it is allowed to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from service.kernels.errors import CudaError, InvalidArgument
from service.kernels.transfer import DIRECT_BYTES, Graph, Trip, Way, pack_laps
from tests.csrc.test_transfer import (
    AFTER,
    ARRIVED,
    BEGIN,
    END,
    PIECE,
    PIECES,
    SIZES,
    Device,
    Memory,
    path,  # noqa: F401 - a fixture
    spans_of,
)

DONE = 1005
H2D, COMPUTE, D2H = 7, 8, 9


class Reversal(ctypes.Structure):
    """What late_copies.cpp takes for a captured graph: it reverses bytes."""

    _fields_ = [("x", ctypes.c_void_p), ("answers", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


class Course:
    """A trip of so many bytes; a small one, where the graph goes from a piece to a piece.

    Attributes:
        laps: Of 1 ms, the first, and of 2.
    """

    def __init__(self, device: Device, nbytes: int, *, small: bool = False) -> None:
        self.device = device
        self._pieces = Memory(PIECE * PIECES)
        self.x, self.answers = Memory(nbytes), Memory(nbytes)
        way: Way | None = Way(
            x=self.x.address,
            h2d=H2D,
            begin=BEGIN,
            arrived=ARRIVED,
            done=DONE,
            answers=self.answers.address,
            d2h=D2H,
        )
        ends = self.x.address, self.answers.address
        if small:
            way, ends = None, (device.pinned.address, self._pieces.address)
        self._reversal = Reversal(*ends, nbytes)
        transfer = device.transfer
        self.graph = transfer.graph(ctypes.addressof(self._reversal), COMPUTE, self)
        self.trip = Trip(
            upload=device.staging,
            graph=self.graph,
            compute=COMPUTE,
            download=transfer.staging(self._pieces.address, PIECE, PIECES),
            end=END,
            way=way,
            laps=pack_laps([(BEGIN, ARRIVED), (AFTER, DONE)]),
        )

    def run(self, inputs: list[Memory], outputs: list[Memory]) -> float:
        return self.device.transfer.run_trip(self.trip, spans_of(inputs), spans_of(outputs))


@pytest.fixture
def device(path) -> Iterator[Device]:  # noqa: F811 - the fixture
    made = Device(path)
    yield made
    made.functions.swiglu_test_refuse_graphs(0)
    made.functions.swiglu_test_refuse(0)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_pass_through_the_graph_and_back(device: Device, sizes: tuple[int, ...]) -> None:
    course = Course(device, sum(sizes))
    for first in range(2):
        inputs = [Memory(size, seed + first) for seed, size in enumerate(sizes)]
        outputs = [Memory(size) for size in reversed(sizes)]
        assert 0 <= course.run(inputs, outputs) < 1
        sent = b"".join(memory.content for memory in inputs)
        assert b"".join(memory.content for memory in outputs) == sent[::-1]


def test_long_page_locked_rows_go_directly_both_ways(device: Device) -> None:
    large = Memory(2 * DIRECT_BYTES, 5)
    before = large.content
    device.lock(large)
    course = Course(device, large.nbytes)
    device.copies()
    course.run([large], [large])
    assert large.content == before[::-1]
    assert device.copies() == 2


@pytest.mark.parametrize("sizes", [(1,), (PIECE,), (3, 1, 40, 7)], ids=str)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_small_trip_goes_from_a_piece_to_a_piece(
    device: Device, sizes: tuple[int, ...], at_once: bool
) -> None:
    course = Course(device, sum(sizes), small=True)
    for first in range(2):
        inputs = [Memory(size, seed + first) for seed, size in enumerate(sizes)]
        outputs = [Memory(size) for size in reversed(sizes)]
        sent = b"".join(memory.content for memory in inputs)
        if at_once:
            assert 0 <= course.run(inputs, outputs) < 1
        else:
            device.transfer.begin_trip(course.trip, spans_of(inputs))
            # They are free by now.
            for memory in inputs:
                ctypes.memset(memory.address, 0, memory.nbytes)
            assert 0 <= device.transfer.end_trip(course.trip, spans_of(outputs)) < 1
        assert b"".join(memory.content for memory in outputs) == sent[::-1]
    assert device.copies() == 0


def test_a_small_trip_without_rows_takes_what_is_there(device: Device) -> None:
    course, output = Course(device, 4, small=True), Memory(4)
    ctypes.memmove(device.pinned.address, b"abcd", 4)
    device.transfer.begin_trip(course.trip, b"")
    device.transfer.end_trip(course.trip, spans_of([output]))
    assert output.content == b"dcba"


@pytest.mark.parametrize("direction", [0, 1])
def test_a_small_trip_takes_no_more_than_a_piece(device: Device, direction: int) -> None:
    course = Course(device, PIECE, small=True)
    memories = [[Memory(PIECE)], [Memory(PIECE)]]
    memories[direction] = [Memory(PIECE), Memory(1)]
    with pytest.raises(InvalidArgument, match=f"must have at most {PIECE} bytes, have {PIECE + 1}"):
        course.run(*memories)


def test_only_a_small_trip_begins_and_ends_by_itself(device: Device) -> None:
    course, spans = Course(device, 4), spans_of([Memory(4)])
    for call in (device.transfer.begin_trip, device.transfer.end_trip):
        with pytest.raises(InvalidArgument, match="x: must be NULL, is a pointer"):
            call(course.trip, spans)


def test_laps_are_read_in_order(device: Device) -> None:
    laps = Course(device, 1).trip.laps
    assert device.transfer.read_laps(laps) == pytest.approx((1e-3, 2e-3))


@pytest.mark.parametrize("small", [True, False])
def test_a_graph_that_is_refused_fails_the_batch(device: Device, small: bool) -> None:
    course, memory = Course(device, 10, small=small), Memory(10, 1)
    device.functions.swiglu_test_refuse_graphs(1)
    with pytest.raises(CudaError, match="cudaGraphLaunch: CUDA error: refused"):
        course.run([memory], [Memory(10)])
    device.functions.swiglu_test_refuse_graphs(0)
    output = Memory(10)
    course.run([memory], [output])
    assert output.content == memory.content[::-1]


@pytest.mark.parametrize("direction", [0, 1])
def test_spans_are_checked_before_anything_is_enqueued(device: Device, direction: int) -> None:
    course = Course(device, 10)
    spans = [[Memory(10, 1)], [Memory(10)]]
    spans[direction][0].nbytes = 0
    device.copies()
    with pytest.raises(InvalidArgument, match=r"bytes of a span: must be 1 or more, is 0"):
        course.run(*spans)
    assert device.copies() == 0


def test_a_graph_is_let_go_once(device: Device) -> None:
    count = device.functions.swiglu_test_graphs_destroyed
    count.restype = ctypes.c_int64
    before = count()
    graph = Graph(device.transfer.library, 1, COMPUTE, None)
    assert count() == before
    del graph
    assert count() == before + 1


def test_nothing_is_no_graph_and_no_trip(device: Device) -> None:
    functions = device.functions
    with pytest.raises(InvalidArgument, match="captured: must be a pointer, is NULL"):
        Graph(device.transfer.library, 0, COMPUTE, None)
    spans = spans_of([Memory(1)])
    status = functions.swiglu_run_trip(None, spans, 1, spans, 1, ctypes.c_double())
    with pytest.raises(InvalidArgument, match="trip: must be a pointer, is NULL"):
        device.transfer.library.check(status)
