"""Batches on the event loop's thread: which ones, and that nobody can tell but by the clock."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from service.batching.inline import LONGEST_S, PATIENCE_S, runs_inline
from service.batching.worker import EngineWorker
from service.engine.base import Batch, BatchReport, Launched, Output
from service.errors import EngineDead, EngineError
from tests.batching.harness import REPORT, Harness
from tests.batching.test_worker import TIMEOUT_S, member, rows, start, within
from tests.batching.virtual_time import settle, virtual_time
from tests.engines import HIDDEN, FakeEngine, expected

EXPECTED_S = (None, 0.0, LONGEST_S, math.nextafter(LONGEST_S, 1), 1.0, math.inf)


@pytest.mark.parametrize(
    ("running", "admitted", "expected_s"), list(product((0, 1, 3), (0, 1, 50), EXPECTED_S))
)
def test_the_loop_runs_what_is_short_while_nothing_else_is_going_on(
    running: int, admitted: int, expected_s: float | None
) -> None:
    short = expected_s in (0.0, LONGEST_S)
    found = runs_inline(running, admitted, lambda: expected_s)
    assert found is (short and running == admitted == 0)


def test_the_loop_waits_for_what_takes_as_long_as_was_expected() -> None:
    assert LONGEST_S < PATIENCE_S < 1e-3


class Launching(FakeEngine):
    """Can be asked not to wait.

    Attributes:
        expected: What every batch is expected to take.
        is_over: Whether a batch is over when the loop has lost its patience.
        is_full: Whether it would have to wait to launch.
        fail_launch: Raised by every launch.
        calls: What was called, and by which thread.
    """

    def __init__(self, concurrency: int = 2) -> None:
        super().__init__(concurrency=concurrency)
        self.expected: float | None = 0.0
        self.is_over = True
        self.is_full = False
        self.fail_launch: BaseException | None = None
        self.calls: list[tuple[str, str]] = []

    def _note(self, what: str) -> None:
        self.calls.append((what, threading.current_thread().name))

    def expected_s(self, output: Output, tokens: int) -> float | None:
        return self.expected

    def launch(self, batch: Batch) -> Launched | None:
        self._note("launch")
        if self.fail_launch is not None:
            raise self.fail_launch
        if self.is_full:
            return None
        reports: list[BatchReport] = []
        return Launched(
            "fake",
            self._spin,
            lambda: reports.append(self._finish(batch)),
            lambda: self._report(reports),
        )

    def run(self, batch: Batch) -> BatchReport:
        self._note("run")
        return super().run(batch)

    def _spin(self, seconds: float) -> bool:
        assert seconds == PATIENCE_S
        self._note("spin")
        return self.is_over

    def _finish(self, batch: Batch) -> BatchReport:
        report = super().run(batch)
        self._note("finish")
        return report

    def _report(self, reports: list[BatchReport]) -> BatchReport:
        self._note("report")
        return reports.pop()

    def close(self) -> None:
        super().close()
        self._note("close")


HERE = "MainThread"


def assert_right(outcome: object, *inputs: np.ndarray) -> None:
    assert isinstance(outcome, tuple), outcome
    report, outputs = outcome
    assert report.kernel == "fake"
    for x, data in zip(inputs, outputs, strict=True):
        answer = np.frombuffer(data, "<f2").reshape(len(x), HIDDEN)
        np.testing.assert_array_equal(answer, expected(x, 0).astype("<f2"))


def test_a_batch_for_an_idle_engine_never_leaves_the_loops_thread() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        for count in range(1, 4):
            future = start(worker, member(rows(count)), member(rows(2, 5.0)))
            assert_right(await within(future), rows(count), rows(2, 5.0))
        assert engine.calls == [("launch", HERE), ("spin", HERE), ("finish", HERE)] * 3
        await worker.stop()

    asyncio.run(main())


def test_a_batch_beside_another_goes_to_a_thread_and_the_next_one_does_not() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        engine.gate.clear()
        engine.expected = 1.0
        first = start(worker, member(rows(1)))
        engine.expected = 0.0
        second = start(worker, member(rows(1)))
        assert not first.done()
        assert not second.done()
        engine.gate.set()
        assert_right(await within(first), rows(1))
        assert_right(await within(second), rows(1))
        assert [what for what, _ in engine.calls] == ["run", "run"]
        assert HERE not in {thread for _, thread in engine.calls}
        engine.calls.clear()
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        assert {thread for _, thread in engine.calls} == {HERE}
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("expected_s", [None, 1.0])
def test_a_long_batch_goes_to_a_thread(expected_s: float | None) -> None:
    async def main() -> None:
        engine = Launching()
        engine.expected = expected_s
        worker = EngineWorker(engine)
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        assert [what for what, _ in engine.calls] == ["run"]
        await worker.stop()

    asyncio.run(main())


def test_a_batch_goes_to_a_thread_while_requests_are_on_their_way() -> None:
    async def main() -> None:
        engine = Launching()
        admitted = 1
        worker = EngineWorker(engine, lambda: admitted)
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        assert [what for what, _ in engine.calls] == ["run"]
        admitted = 0
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        assert engine.calls[-1] == ("finish", HERE)
        await worker.stop()

    asyncio.run(main())


def test_a_batch_that_cannot_be_launched_goes_to_a_thread() -> None:
    async def main() -> None:
        engine = Launching()
        engine.is_full = True
        worker = EngineWorker(engine)
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        assert [what for what, _ in engine.calls] == ["launch", "run"]
        await worker.stop()

    asyncio.run(main())


def test_a_thread_takes_over_from_a_loop_that_has_waited_long_enough() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        engine.is_over = False
        engine.gate.clear()
        future = start(worker, member(rows(3)))
        assert await asyncio.to_thread(engine.started.acquire, timeout=TIMEOUT_S)
        assert not future.done()
        # It still runs, so that the next one finds company.
        engine.is_over = True
        beside = start(worker, member(rows(1)))
        engine.gate.set()
        assert_right(await within(future), rows(3))
        assert_right(await within(beside), rows(1))
        assert engine.calls[:2] == [("launch", HERE), ("spin", HERE)]
        assert sorted(what for what, _ in engine.calls[2:]) == ["finish", "report", "run"]
        assert HERE not in {thread for _, thread in engine.calls[2:]}
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("error", [EngineError("no"), RuntimeError("no"), MemoryError()])
def test_what_goes_wrong_is_the_outcome_and_the_next_batch_runs(
    is_over: bool, error: Exception
) -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        engine.is_over = is_over
        engine.fail_next = error
        assert await within(start(worker, member(rows(1)))) is error
        engine.fail_launch = error
        assert await within(start(worker, member(rows(1)))) is error
        engine.fail_launch = None
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        await worker.stop()

    asyncio.run(main())


def test_memory_for_answers_that_cannot_be_had_fails_the_batch_only() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        huge = member(rows(1))
        huge.output_nbytes = 1 << 60
        assert isinstance(await within(start(worker, huge)), MemoryError)
        assert_right(await within(start(worker, member(rows(1)))), rows(1))
        await worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("dies_in", ["launch", "finish", "thread"])
def test_a_dead_engine_is_left_alone(dies_in: str) -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        error = EngineDead("poisoned")
        engine.is_over = dies_in != "thread"
        if dies_in == "launch":
            engine.fail_launch = error
        else:
            engine.fail_next = error
        assert await within(start(worker, member(rows(1)))) is error
        calls = len(engine.calls)
        assert await within(start(worker, member(rows(1)))) is error
        assert len(engine.calls) == calls

    asyncio.run(main())


@pytest.mark.parametrize("is_over", [True, False])
def test_stop_waits_for_a_batch_that_was_just_launched(is_over: bool) -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        engine.is_over = is_over
        engine.run_s = 0.05
        future = start(worker, member(rows(1)))
        await worker.stop()
        assert_right(future.result(), rows(1))
        assert engine.calls[-1][0] == "close"

    asyncio.run(main())


def test_stop_waits_for_a_batch_that_a_thread_took_over() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        engine.is_over = False
        engine.gate.clear()
        future = start(worker, member(rows(1)))
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0.05)
        assert not engine.closed
        engine.gate.set()
        await within(stopping)
        assert engine.closed
        assert_right(future.result(), rows(1))

    asyncio.run(main())


def test_the_loop_turns_while_a_launched_batch_runs() -> None:
    async def main() -> None:
        engine = Launching()
        worker = EngineWorker(engine)
        future = start(worker, member(rows(1)))
        asyncio.get_running_loop().call_soon(lambda: engine.calls.append(("other", HERE)))
        beside = start(worker, member(rows(1)))
        assert [what for what, thread in engine.calls if thread == HERE] == ["launch"]
        assert_right(await within(future), rows(1))
        assert_right(await within(beside), rows(1))
        assert [what for what, thread in engine.calls if thread == HERE] == [
            "launch",
            "spin",
            "finish",
            "other",
        ]
        await worker.stop()

    asyncio.run(main())


def launched(report: Callable[[], BatchReport]) -> Launched:
    return Launched("kernel2/fast", lambda _: True, lambda: None, report)


@virtual_time
async def test_answers_are_there_before_anybody_reads_what_a_launched_batch_took() -> None:
    harness = Harness()
    seen: list[str] = []

    def report() -> BatchReport:
        seen.append("report")
        return REPORT

    request = harness.submit(3)
    request.future.add_done_callback(lambda _: seen.append("answer"))
    await asyncio.sleep(0)
    harness.started[0].end((launched(report), [memoryview(bytearray(request.output_nbytes))]))
    answer = await request.future
    assert (answer.kernel, answer.batch_tokens) == ("kernel2/fast", 3)
    await settle()
    assert seen == ["answer", "report"]
    assert harness.sample("mlp_tokens_total") == 3
    assert harness.sample("mlp_gpu_busy_seconds_total") == REPORT.busy_s


@virtual_time
async def test_timers_that_cannot_be_read_are_the_end_of_the_engine() -> None:
    harness = Harness()
    error = EngineDead("gone")

    def report() -> BatchReport:
        raise error

    request = harness.submit(1)
    await asyncio.sleep(0)
    harness.started[0].end((launched(report), [memoryview(bytearray(request.output_nbytes))]))
    await request.future
    await settle()
    assert harness.deaths == [error]
    assert asyncio.get_running_loop().errors.pop() is error
