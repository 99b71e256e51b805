"""The engine's bench: batches are counted, times are attributed, errors are not swallowed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from service.bench.engine import make_row
from service.bench.engine_feed import Alone, Case, Fed, keep_supplied, run_alone
from service.bench.engine_results import csv_path
from service.engine.base import Batch, BatchReport, DType, ModelSpec, OnEnd, Output
from service.errors import EngineError
from tests.engines import FakeEngine

SPEC = ModelSpec("tiny", 8, 32, (3,), "silu", DType.BF16)


class Counting(FakeEngine):
    """Takes 2 ms a batch, 1 of them on the device, and remembers what it got."""

    def __init__(self, concurrency: int = 2) -> None:
        super().__init__(SPEC, concurrency=concurrency)
        self.threads: set[int] = set()
        self.memory: set[int] = set()

    def allocate_host(self, nbytes: int) -> bytearray:
        self.memory.add(nbytes)
        return bytearray(nbytes)

    def run(self, batch: Batch) -> BatchReport:
        self.batches.append(batch)
        self.threads.add(threading.get_ident())
        time.sleep(0.002)
        if self.fail_next is not None:
            raise self.fail_next
        stages = {"h2d": 2e-4, "compute": 5e-4, "d2h": 3e-4}
        return BatchReport("fake", (("fake", 5e-4),), stages, 5e-4)


def test_an_engine_is_kept_supplied_by_as_many_threads_as_it_takes() -> None:
    engine = Counting()
    fed = keep_supplied(engine, Case(3, 5), 0.2)
    assert len(engine.threads) == 2
    # One batch of each thread comes before the clock starts.
    assert fed.batches == len(engine.batches) - 2 > 4
    assert fed.elapsed_s == pytest.approx(0.2, abs=0.15)
    assert fed.busy_s == pytest.approx(fed.batches * 5e-4)


def test_batches_are_what_the_case_says_in_memory_that_the_engine_lends() -> None:
    engine = Counting()
    run_alone(engine, Case(3, 5))
    batch = engine.batches[-1]
    assert (batch.layer, batch.tokens, len(batch.segments)) == (3, 15, 3)
    for segment in batch.segments:
        assert segment.input.nbytes == segment.output.nbytes == 5 * 8 * 2
        assert any(segment.input)
    assert engine.batches[0].segments[0].output.obj is not batch.segments[0].output.obj
    # Inputs each for itself, answers together.
    assert engine.memory == {80, 240}


def test_a_batch_alone_is_timed_from_call_to_return() -> None:
    alone = run_alone(Counting(), Case(1, 1))
    assert 0.002 <= alone.total_s < 0.1
    assert alone.device_s == pytest.approx(1e-3)


def test_a_batch_that_fails_ends_the_measurement() -> None:
    engine = Counting()
    engine.fail_next = EngineError("no")
    with pytest.raises(EngineError, match="no"):
        keep_supplied(engine, Case(1, 1), 0.1)


class Starting(Counting):
    """Runs batches of up to `limit` rows in threads of its own, at most two at a time."""

    limit = 100

    def __init__(self) -> None:
        super().__init__()
        self.descriptors = (os.eventfd(0, os.EFD_NONBLOCK),)
        self.most = 0
        self._running = 0
        self._over: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def starts(self, output: Output, tokens: int) -> bool:
        return tokens <= self.limit

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        if not self.starts(batch.output, batch.tokens):
            return False
        self._running += 1
        self.most = max(self.most, self._running)

        def work() -> None:
            try:
                outcome: BatchReport | Exception = self.run(batch)
            except EngineError as error:
                outcome = error
            self._over.put(lambda: ended(outcome))
            os.eventfd_write(self.descriptors[0], 1)

        threading.Thread(target=work).start()
        return True

    def collect(self) -> None:
        os.eventfd_read(self.descriptors[0])
        while not self._over.empty():
            self._running -= 1
            self._over.get()()


def test_an_engine_with_threads_of_its_own_is_kept_supplied_by_one() -> None:
    engine = Starting()
    fed = keep_supplied(engine, Case(3, 5), 0.2)
    assert engine.most == 2
    assert 0 <= len(engine.batches) - fed.batches - 1 <= 1
    assert fed.batches > 4
    assert fed.elapsed_s == pytest.approx(0.2, abs=0.15)
    assert fed.busy_s == pytest.approx(fed.batches * 5e-4)
    engine.fail_next = EngineError("no")
    with pytest.raises(EngineError, match="no"):
        keep_supplied(engine, Case(3, 5), 0.1)


def test_what_those_do_not_run_is_run_by_ours() -> None:
    engine = Starting()
    fed = keep_supplied(engine, Case(1, Starting.limit + 1), 0.1)
    assert (fed.batches > 4, engine.most, len(engine.threads)) == (True, 0, 2)


def test_shares_are_of_the_time_and_of_the_bus() -> None:
    row = make_row(
        "m", FakeEngine(SPEC), Case(2, 100), Alone(9e-4, 7e-4), Fed(1000, 2.0, 1.5), 16e6
    )
    # 200 rows of 16 bytes each way, 500 times a second.
    assert row.batches_per_s == 500
    assert row.gbytes_per_s == pytest.approx(2 * 200 * 16 * 500 / 1e9, abs=1e-3)
    assert row.bus_share == pytest.approx(200 * 16 * 500 / 16e6)
    assert (row.busy_share, row.compute_us) == (0.75, 1500.0)
    assert (row.alone_us, row.device_us) == (900.0, 700.0)


def test_files_of_several_gpus_have_a_name_of_their_own(tmp_path) -> None:
    assert csv_path(tmp_path, "h200", 1) == tmp_path / "h200-engine.csv"
    assert csv_path(tmp_path, "h200", 2) == tmp_path / "h200-engine-x2.csv"
