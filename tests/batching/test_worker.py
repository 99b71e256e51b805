"""The engine's threads: outcomes reach the loop, nothing kills a thread, stop waits for batches."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

from service.batching import worker as worker_module
from service.batching.admission import Admission
from service.batching.arena import Arena
from service.batching.batcher import Outcome
from service.batching.request import PendingRequest
from service.batching.worker import EngineWorker, allocate_outputs
from service.engine.base import Batch, BatchReport, DType, OnEnd, Output
from service.errors import EngineDead, EngineError, ServiceError
from tests.engines import HIDDEN, FakeEngine, expected
from tests.servers import wait_until

TIMEOUT_S = 10


def member(rows: np.ndarray, *, layer: int = 0, output: Output = Output.MLP) -> PendingRequest:
    admission = Admission(Arena(0), max_queue_tokens=1000, max_queue_bytes=1 << 20)
    lease = admission.admit(len(rows), rows.nbytes)
    lease.slot.view[:] = rows.tobytes()
    width = HIDDEN if output is Output.MLP else 2 * HIDDEN
    return PendingRequest(
        layer=layer,
        output=output,
        tokens=len(rows),
        data=lease.slot.view,
        dtype=DType.FP32,
        output_dtype=DType.FP16,
        output_nbytes=len(rows) * width * 2,
        lease=lease,
    )


def rows(tokens: int, first: float = 0.0) -> np.ndarray:
    count = tokens * HIDDEN
    return (np.arange(count, dtype="<f4") / 8 + first).reshape(tokens, HIDDEN)


def start(worker: EngineWorker, *members: PendingRequest) -> asyncio.Future[Outcome]:
    """Start a batch; the future gets the outcome, and fails if `done` comes on another thread."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    future: asyncio.Future[Outcome] = loop.create_future()

    def done(outcome: Outcome) -> None:
        assert threading.get_ident() == here
        future.set_result(outcome)

    worker.start(members, done)
    return future


async def within(future: asyncio.Future):
    return await asyncio.wait_for(future, TIMEOUT_S)


def test_members_get_their_own_rows_in_their_own_dtype():
    async def main() -> None:
        worker = EngineWorker(FakeEngine())
        inputs = [rows(3), rows(1, 50.0), rows(2, -7.0)]
        members = [member(x, layer=0, output=Output.GATED) for x in inputs]
        report, outputs = await within(start(worker, *members))
        assert report.kernel == "fake"
        for x, data in zip(inputs, outputs, strict=True):
            answer = np.frombuffer(data, "<f2").reshape(len(x), 2 * HIDDEN)
            np.testing.assert_array_equal(answer, expected(x, 0, Output.GATED).astype("<f2"))
        await worker.stop()

    asyncio.run(main())


def test_every_answer_lies_in_memory_of_its_own():
    async def main() -> None:
        worker = EngineWorker(FakeEngine())
        request = member(rows(2))
        _, (first,) = await within(start(worker, request))
        before = bytes(first)
        request.data[:] = rows(2, 9.0).tobytes()
        _, (second,) = await within(start(worker, request))
        assert bytes(first) == before != bytes(second)
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([], []),
        ([5], [5]),
        ([10, 20, 30], [10 + 6 + 20 + 4 + 30]),
        ([60, 36, 8], [60 + 4 + 36, 8]),
        ([300, 10, 10], [300, 26]),
        ([16, 16, 70, 16], [32, 72 + 16]),
    ],
)
def test_answers_share_blocks_that_stay_small(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], blocks: list[int]
):
    monkeypatch.setattr(worker_module, "_BLOCK_BYTES", 100)
    made: list[int] = []

    def allocate(nbytes: int) -> bytearray:
        made.append(nbytes)
        return bytearray(nbytes)

    outputs = allocate_outputs(sizes, allocate)
    assert made == blocks
    assert [output.nbytes for output in outputs] == sizes
    for number, output in enumerate(outputs):
        output[:] = bytes([number]) * output.nbytes
    assert [bytes(output) for output in outputs] == [
        bytes([number]) * size for number, size in enumerate(sizes)
    ]


def test_answers_lie_in_memory_that_the_engine_lends():
    lent: list[int] = []

    class Lending(FakeEngine):
        def allocate_host(self, nbytes: int) -> bytearray:
            lent.append(nbytes)
            return bytearray(nbytes)

    async def main() -> None:
        worker = EngineWorker(Lending())
        _, outputs = await within(start(worker, member(rows(3)), member(rows(2))))
        assert lent == [5 * HIDDEN * 2]
        for x, data in zip((rows(3), rows(2)), outputs, strict=True):
            answer = np.frombuffer(data, "<f2").reshape(len(x), HIDDEN)
            np.testing.assert_array_equal(answer, expected(x, 0).astype("<f2"))
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [RuntimeError("no"), KeyboardInterrupt(), SystemExit(3), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_what_the_engine_raises_is_the_outcome_and_the_thread_lives_on(error: BaseException):
    async def main() -> None:
        engine = FakeEngine()
        worker = EngineWorker(engine)
        engine.fail_next = error
        assert await within(start(worker, member(rows(1)))) is error
        assert isinstance(await within(start(worker, member(rows(1)))), tuple)
        await worker.stop()

    asyncio.run(main())


def test_a_dead_engine_is_left_alone_also_by_what_is_queued_behind_the_batch_that_killed_it():
    async def main() -> None:
        engine = FakeEngine()
        worker = EngineWorker(engine)
        engine.gate.clear()
        engine.fail_next = EngineDead("poisoned")
        first, second = start(worker, member(rows(1))), start(worker, member(rows(1)))
        calls: list[int] = []
        third = worker.call(lambda: calls.append(1))
        engine.gate.set()
        assert await within(first) is await within(second)
        with pytest.raises(EngineDead, match="poisoned"):
            await within(third)
        assert (len(engine.batches), calls) == (1, [])

    asyncio.run(main())


def test_memory_that_cannot_be_had_fails_the_batch_only():
    async def main() -> None:
        worker = EngineWorker(FakeEngine())
        huge = member(rows(1))
        huge.output_nbytes = 1 << 60
        assert isinstance(await within(start(worker, huge)), MemoryError)
        assert isinstance(await within(start(worker, member(rows(1)))), tuple)
        await worker.stop()

    asyncio.run(main())


def test_one_thread_per_batch_that_the_engine_runs_at_once():
    async def main() -> None:
        engine = FakeEngine(concurrency=2)
        worker = EngineWorker(engine)
        engine.gate.clear()
        futures = [start(worker, member(rows(1))) for _ in range(3)]
        for _ in range(2):
            assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        # The third waits for a thread, and none of this blocks the loop.
        assert not engine.started.acquire(timeout=0.05)
        engine.gate.set()
        for future in futures:
            assert isinstance(await within(future), tuple)
        await worker.stop()

    asyncio.run(main())


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but asyncio lets the test look at it."""


def test_a_call_returns_or_raises_where_it_is_awaited():
    async def main() -> None:
        engine = FakeEngine()
        worker = EngineWorker(engine)
        names: list[str] = []
        await within(worker.call(lambda: names.append(threading.current_thread().name)))
        assert names == ["engine-0"]
        for error in (RuntimeError("no"), Interrupt()):
            engine.self_test_error = error
            with pytest.raises(type(error)):
                await within(worker.call(engine.self_test))
        engine.self_test_error = None
        await within(worker.call(engine.self_test))
        await worker.stop()

    asyncio.run(main())


def test_a_call_whose_caller_has_gone_is_made_all_the_same():
    async def main() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        worker = EngineWorker(FakeEngine())
        gate, made = threading.Event(), threading.Event()
        blocked = worker.call(lambda: gate.wait(TIMEOUT_S))
        abandoned = worker.call(made.set)
        abandoned.cancel()
        gate.set()
        await within(blocked)
        await within(worker.call(lambda: None))
        assert (made.is_set(), errors) == (True, [])
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("concurrency", "waiting"), [(1, 0), (1, 3), (2, 0), (3, 1), (3, 4)])
def test_stop_lets_batches_end_then_closes_the_engine_and_ends_the_threads(
    concurrency: int, waiting: int
):
    threads: set[threading.Thread] = set()

    async def main() -> None:
        engine = FakeEngine(concurrency=concurrency)
        before = set(threading.enumerate())
        worker = EngineWorker(engine)
        threads.update(set(threading.enumerate()) - before)
        engine.gate.clear()
        batches = [start(worker, member(rows(1))) for _ in range(1 + waiting)]
        assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0.05)
        assert not engine.closed, "closed under a running batch"
        engine.gate.set()
        await within(stopping)
        assert engine.closed
        assert all(future.done() for future in batches)

    asyncio.run(main())
    assert len(threads) == concurrency
    wait_until(lambda: not any(thread.is_alive() for thread in threads))


def test_stop_can_be_given_up_where_a_batch_hangs():
    engine = FakeEngine(concurrency=2)

    async def main() -> None:
        worker = EngineWorker(engine)
        engine.gate.clear()
        start(worker, member(rows(1)))
        assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(worker.stop(), 0.05)

    asyncio.run(main())
    assert not engine.closed
    engine.gate.set()


def test_stop_says_what_closing_raised():
    class Stuck(FakeEngine):
        def close(self) -> None:
            raise RuntimeError("device is busy")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="device is busy"):
            await EngineWorker(Stuck(concurrency=2)).stop()

    asyncio.run(main())


def test_a_batch_that_outlives_the_loop_is_forgotten():
    """As with a dead engine, which nobody waits for; the thread must not die of it loudly."""
    engine = FakeEngine()

    async def main() -> EngineWorker:
        worker = EngineWorker(engine)
        engine.gate.clear()
        start(worker, member(rows(1)))
        assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        return worker

    worker = asyncio.run(main())
    engine.gate.set()
    done = threading.Event()
    for job in (done.set, None):
        worker._jobs.put(job)
    assert done.wait(TIMEOUT_S), "the thread is not alive for the next job"


class Starting(FakeEngine):
    """Has threads of its own for batches of less than `limit` rows.

    Attributes:
        is_full: Whether none of them is free.
        refuses: What it cannot start for.
        formed: Batches that it was to start.
    """

    limit = 10

    def __init__(self, concurrency: int = 1) -> None:
        super().__init__(concurrency=concurrency)
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self.descriptors = (self.descriptor,)
        self.is_full = False
        self.refuses: Exception | None = None
        self.formed: list[Batch] = []
        self._over: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def starts(self, output: Output, tokens: int) -> bool:
        return tokens < self.limit

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        assert self.starts(batch.output, batch.tokens)
        self.formed.append(batch)
        if self.refuses is not None:
            raise self.refuses
        if self.is_full:
            return False

        def work() -> None:
            try:
                outcome: BatchReport | Exception = replace(self.run(batch), kernel="started")
            except (RuntimeError, ServiceError) as error:
                outcome = error
            self._over.put(lambda: ended(outcome))
            os.eventfd_write(self.descriptor, 1)

        threading.Thread(target=work).start()
        return True

    def collect(self) -> None:
        os.eventfd_read(self.descriptor)
        self._over.get()()

    def close(self) -> None:
        super().close()
        os.close(self.descriptor)


def test_an_engine_with_threads_of_its_own_runs_what_it_can():
    async def main() -> None:
        engine = Starting()
        worker = EngineWorker(engine)
        for count, kernel in ((3, "started"), (Starting.limit, "fake"), (2, "started")):
            report, (data,) = await within(start(worker, member(rows(count))))
            assert report.kernel == kernel
            answer = np.frombuffer(data, "<f2").reshape(count, HIDDEN)
            np.testing.assert_array_equal(answer, expected(rows(count), 0).astype("<f2"))
        engine.is_full = True
        report, (data,) = await within(start(worker, member(rows(2))))
        assert report.kernel == "fake"
        assert engine.batches[-1] is engine.formed[-1], "formed anew"
        assert len(engine.formed) == 3
        await worker.stop()
        assert engine.closed

    asyncio.run(main())


def test_what_a_started_batch_failed_with_is_its_outcome():
    async def main() -> None:
        engine = Starting()
        worker = EngineWorker(engine)
        for error in (RuntimeError("no"), EngineError("neither")):
            engine.fail_next = error
            assert await within(start(worker, member(rows(1)))) is error
            engine.refuses = error
            assert await within(start(worker, member(rows(1)))) is error
            engine.refuses = None
        assert isinstance(await within(start(worker, member(rows(1)))), tuple)
        engine.fail_next = dead = EngineDead("poisoned")
        assert await within(start(worker, member(rows(1)))) is dead
        assert await within(start(worker, member(rows(1)))) is dead
        assert len(engine.batches) == 4, "a dead engine is left alone"

    asyncio.run(main())


@pytest.mark.parametrize("batches", [1, 3])
def test_stop_waits_for_started_batches(batches: int):
    async def main() -> None:
        engine = Starting()
        worker = EngineWorker(engine)
        engine.gate.clear()
        futures = [start(worker, member(rows(1))) for _ in range(batches)]
        for _ in range(batches):
            assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0.05)
        assert not engine.closed
        engine.gate.set()
        await within(stopping)
        assert engine.closed
        assert all(future.done() for future in futures)
        assert not asyncio.get_running_loop().remove_reader(engine.descriptor), "still watched"

    asyncio.run(main())


def test_what_is_begun_while_it_stops_is_waited_for():
    """As a batch's members, which are tried again when it has failed."""

    async def main() -> None:
        engine = Starting(concurrency=2)
        worker = EngineWorker(engine)
        engine.gate.clear()
        first = start(worker, member(rows(1)))
        assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        again: list[asyncio.Future[Outcome]] = []
        first.add_done_callback(lambda _: again.append(start(worker, member(rows(2)))))
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0.05)
        engine.gate.set()
        await within(stopping)
        assert engine.closed
        report, _ = await within(again[0])
        assert report.kernel == "fake"

    asyncio.run(main())
