"""Batches in the library's own threads, on the device that does everything as late as it may."""

from __future__ import annotations

import ctypes
import os
import select
import time
import weakref
from collections.abc import Iterator

import pytest

from service.kernels.errors import CudaError, InvalidArgument
from service.kernels.runner import MAX_LAPS, Ended, Runner
from service.kernels.transfer import pack_laps, pack_spans
from tests.csrc.test_transfer import Device, Memory, path, spans_of  # noqa: F401 - a fixture
from tests.csrc.test_trip import Course
from tests.servers import wait_until

TIMEOUT_MS = 20_000


@pytest.fixture
def device(path) -> Iterator[Device]:  # noqa: F811 - the fixture
    made = Device(path)
    yield made
    made.functions.swiglu_test_refuse_graphs(0)
    made.functions.swiglu_test_device(0)
    made.functions.swiglu_test_lose(0)


def wait(runner: Runner, timeout_ms: int = TIMEOUT_MS) -> bool:
    poll = select.poll()
    poll.register(runner.descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def start(runner: Runner, ticket: int, course: Course, memory: Memory, output: Memory) -> None:
    """Whose arrays of spans go when this returns."""
    spans = spans_of([memory]), spans_of([output])
    runner.start(ticket, course.trip, *spans, (course, memory, output))


def collect(runner: Runner, count: int = 1) -> list[Ended]:
    found: list[Ended] = []
    while len(found) < count:
        assert wait(runner), "nothing ended"
        ended = runner.collect()
        assert ended is not None, "readable for nothing"
        found.append(ended)
    return found


@pytest.mark.parametrize("small", [True, False])
def test_a_batch_goes_through_and_is_told_of_once(device: Device, small: bool) -> None:
    runner, course = Runner(device.transfer.library, 1), Course(device, 9, small=small)
    memory, output = Memory(9, 4), Memory(9)
    assert not wait(runner, 0)
    assert runner.collect() is None
    start(runner, 7, course, memory, output)
    (ended,) = collect(runner)
    assert output.content == memory.content[::-1]
    assert (ended.ticket, ended.error, ended.kept) == (7, None, (course, memory, output))
    assert 0 <= ended.host_s < 1
    assert ended.laps_s[:2] == pytest.approx((1e-3, 2e-3))
    assert not wait(runner, 0)
    assert runner.collect() is None


@pytest.mark.parametrize("threads", [1, 3])
def test_many_batches_each_get_their_own(device: Device, threads: int) -> None:
    """The fake device does what is asked for in order, so that all threads can share one."""
    runner = Runner(device.transfer.library, threads)
    courses = []
    for seed in range(threads):
        # Pieces of its own, as a slot has.
        one = Device.__new__(Device)
        one.transfer, one.functions = device.transfer, device.functions
        one.pinned = Memory(300)
        one.staging = device.transfer.staging(one.pinned.address, 100, 3)
        courses.append((Course(one, 20 + seed), one))
    free, sent, right = list(range(threads)), {}, 0
    for ticket in range(1, 201):
        if not free:
            (ended,) = collect(runner)
            index, memory, output = sent.pop(ended.ticket)
            assert ended.error is None
            assert output.content == memory.content[::-1]
            free.append(index)
            right += 1
        index = free.pop()
        memory, output = Memory(20 + index, ticket % 97), Memory(20 + index)
        sent[ticket] = index, memory, output
        start(runner, ticket, courses[index][0], memory, output)
    for ended in collect(runner, len(sent)):
        _, memory, output = sent.pop(ended.ticket)
        assert output.content == memory.content[::-1]
        right += 1
    assert (right, sent) == (200, {})


def test_a_batch_that_fails_is_told_of_with_its_error_when_the_device_is_idle(
    device: Device,
) -> None:
    runner, course = Runner(device.transfer.library, 1), Course(device, 9)
    waited = device.functions.swiglu_test_synchronized
    waited.restype = ctypes.c_int64
    before = waited()
    device.functions.swiglu_test_refuse_graphs(1)
    start(runner, 1, course, Memory(9, 1), Memory(9))
    (ended,) = collect(runner)
    assert ended.ticket == 1
    assert isinstance(ended.error, CudaError)
    assert (str(ended.error), ended.lost) == ("cudaGraphLaunch: CUDA error: refused", False)
    assert waited() == before + 1
    device.functions.swiglu_test_lose(1)
    start(runner, 3, course, Memory(9, 1), Memory(9))
    (ended,) = collect(runner)
    assert (str(ended.error), ended.lost) == ("cudaDeviceSynchronize: CUDA error: lost", True)
    assert waited() == before + 2
    device.functions.swiglu_test_lose(0)
    device.functions.swiglu_test_refuse_graphs(0)
    memory, output = Memory(9, 2), Memory(9)
    start(runner, 2, course, memory, output)
    assert collect(runner)[0].error is None
    assert output.content == memory.content[::-1]
    assert waited() == before + 2


def test_its_threads_are_on_the_device_that_was_current(device: Device) -> None:
    device.functions.swiglu_test_device(5)
    runner = Runner(device.transfer.library, 2)
    device.functions.swiglu_test_device(0)
    course = Course(device, 3)
    start(runner, 1, course, Memory(3), Memory(3))
    collect(runner)
    assert device.functions.swiglu_test_launched_on() == 5


def test_it_keeps_what_it_works_on_until_that_is_collected(device: Device) -> None:
    runner = Runner(device.transfer.library, 1)
    course, memory = Course(device, 3), Memory(3)
    kept = weakref.ref(memory)
    start(runner, 1, course, memory, Memory(3))
    del memory
    assert wait(runner)
    assert kept() is not None
    collect(runner)
    assert kept() is None


def test_ends_that_were_not_collected_stay_readable(device: Device) -> None:
    runner, course = Runner(device.transfer.library, 1), Course(device, 3)
    for ticket in (1, 2, 3):
        start(runner, ticket, course, Memory(3), Memory(3))
    found = []
    for left in (2, 1, 0):
        found += [ended.ticket for ended in collect(runner)]
        if left:
            assert wait(runner), f"{left} are left"
    assert found == [1, 2, 3]
    assert not wait(runner, 0)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_its_threads_end_with_it_also_those_that_work(device: Device) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    # Those of runners of other tests may be on their way out.
    before = min(threads() for _ in range(20) if not time.sleep(0.05))
    runner, course = Runner(device.transfer.library, 4), Course(device, 3)
    assert threads() == before + 4
    output = Memory(3)
    with device.transfer.turn:
        # It can enqueue nothing meanwhile.
        start(runner, 1, course, Memory(3, 1), output)
        # Nobody has what it works on, or could collect it.
        del runner, course
        wait_until(lambda: threads() == before + 1)
        assert output.content == bytes(3)
    wait_until(lambda: threads() == before)
    assert output.content == Memory(3, 1).content[::-1]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_makes_no_sense_is_refused(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="threads: must be 1 or more, is 0"):
        Runner(device.transfer.library, 0)
    runner, course, memory = Runner(device.transfer.library, 1), Course(device, 3), Memory(3)
    spans = spans_of([memory])

    def refused(sentence: str, *about: object) -> None:
        with pytest.raises(InvalidArgument, match=f"^{sentence}$"):
            runner.start(*about, None)

    refused("ticket: must not be 0, is", 0, course.trip, spans, spans)
    for wrong, sentence in (
        (b"", "count: must be 1 or more, is 0"),
        (pack_spans([0, 5]), "host of a span: must be a pointer, is NULL"),
    ):
        refused(sentence, 1, course.trip, wrong, spans)
        refused(sentence, 1, course.trip, spans, wrong)
    course.trip.laps = pack_laps([(1, 2)] * (MAX_LAPS + 1))
    refused(f"num_laps: must be 0 to {MAX_LAPS}, is 5", 1, course.trip, spans, spans)
    course.trip.laps = b""
    start(runner, 1, course, memory, memory)
    assert [ended.ticket for ended in collect(runner)] == [1]


def test_a_null_is_refused_and_not_followed(device: Device) -> None:
    library, course, memory = device.transfer.library, Course(device, 3), Memory(3)
    runner, spans = Runner(library, 1), spans_of([memory])
    start_ = library.holding.swiglu_runner_start
    packed = course.trip.packed
    for name, about in (
        ("runner", (None, 1, packed, spans, 1, spans, 1, None, 0)),
        ("trip", (runner.handle, 1, None, spans, 1, spans, 1, None, 0)),
        ("spans", (runner.handle, 1, packed, None, 1, spans, 1, None, 0)),
        ("spans", (runner.handle, 1, packed, spans, 1, None, 1, None, 0)),
        ("laps", (runner.handle, 1, packed, spans, 1, spans, 1, None, 1)),
    ):
        with pytest.raises(InvalidArgument, match=f"^{name}: must be a pointer, is NULL$"):
            library.check(start_(*about))
    assert library.holding.swiglu_runner_descriptor(None) == -1
    assert not wait(runner, 0)


def test_a_closed_runner_starts_no_thread_and_may_be_closed_again(device: Device) -> None:
    runner = Runner(device.transfer.library, 1)
    runner.close()
    runner.close()
    with pytest.raises(InvalidArgument, match="runner: must be a pointer, is NULL"):
        start(runner, 1, Course(device, 3), Memory(3), Memory(3))
