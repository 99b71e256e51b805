"""Several engines as one: who is next, what is added up, and whose errors arrive."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import (
    Batch,
    BatchReport,
    DType,
    Engine,
    Gpu,
    Launched,
    LaunchesBatches,
    LendsHostMemory,
    OnEnd,
    OnGpus,
    Output,
    Segment,
    StartsBatches,
)
from service.engine.replicas import ReplicatedEngine, select_replica
from service.errors import EngineDead, EngineError
from tests.engines import HIDDEN, FakeEngine

TIMEOUT_S = 20


class Replica(FakeEngine):
    """On a GPU of its own; holds every batch until it is let go."""

    def __init__(self, index: int, concurrency: int = 2) -> None:
        super().__init__()
        self.index = index
        self.concurrency = concurrency
        self.peak_flops: float | None = 1e12
        self.gpus = (Gpu(index, f"GPU-{index}"),)
        self.lent: list[int] = []
        self.tested = 0
        self.warm: list[int] = []

    def allocate_host(self, nbytes: int) -> bytearray:
        self.lent.append(nbytes)
        return bytearray(nbytes)

    def warm_up(self, max_batch_tokens: int) -> None:
        self.warm.append(max_batch_tokens)

    def self_test(self) -> None:
        self.tested += 1
        super().self_test()

    def run(self, batch: Batch) -> BatchReport:
        return replace(super().run(batch), kernel=f"on {self.index}", busy_s=0.5)


def make_batch(tokens: int) -> Batch:
    rows, answer = (memoryview(bytearray(tokens * HIDDEN * 4)) for _ in range(2))
    return Batch(0, Output.MLP, [Segment(tokens, rows, DType.FP32, answer, DType.FP32)])


def make(count: int = 2) -> tuple[list[Replica], ReplicatedEngine]:
    replicas = [Replica(index) for index in range(count)]
    return replicas, ReplicatedEngine(replicas)


@pytest.mark.parametrize(
    ("in_flight", "concurrency", "chosen"),
    [
        ([0, 0], [2, 2], 0),
        ([1, 0], [2, 2], 1),
        ([1, 1], [2, 2], 0),
        ([2, 1], [2, 2], 1),
        ([2, 2], [2, 2], None),
        ([1, 2], [2, 6], 1),
        ([3], [4], 0),
    ],
)
def test_who_has_least_to_do_is_next(
    in_flight: list[int], concurrency: list[int], chosen: int | None
) -> None:
    assert select_replica(in_flight, concurrency) == chosen


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6))
def test_nobody_is_chosen_who_is_full_while_somebody_idles(loads: list[tuple[int, int]]) -> None:
    in_flight = [min(running, limit) for running, limit in loads]
    concurrency = [limit for _, limit in loads]
    chosen = select_replica(in_flight, concurrency)
    if chosen is None:
        assert in_flight == concurrency
        return
    assert in_flight[chosen] < concurrency[chosen]
    if 0 in in_flight:
        assert in_flight[chosen] == 0


def test_it_is_what_the_service_asks_for() -> None:
    replicas, made = make()
    engine: Engine = made
    assert (engine.backend, engine.kernels, engine.model) == ("fake", ("fake",), replicas[0].model)
    assert engine.device == "2 x nowhere"
    assert engine.concurrency == 4
    assert engine.peak_flops == 2e12
    assert isinstance(engine, OnGpus)
    assert [gpu.index for gpu in engine.gpus] == [0, 1]
    assert isinstance(engine, LendsHostMemory)
    engine.allocate_host(5)
    assert replicas[0].lent == [5]
    engine.warm_up(64)
    assert [replica.warm for replica in replicas] == [[64], [64]]
    engine.close()
    assert all(replica.closed for replica in replicas)


def test_a_peak_that_is_not_known_makes_no_sum() -> None:
    replicas, engine = make()
    replicas[1].peak_flops = None
    assert engine.peak_flops is None


def test_batches_go_to_the_gpu_that_idles_and_no_more_than_it_takes() -> None:
    replicas, engine = make()
    for replica in replicas:
        replica.gate.clear()
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(engine.run, make_batch(3)) for _ in range(5)]
        for replica in replicas:
            assert replica.started.acquire(timeout=TIMEOUT_S)
            assert replica.started.acquire(timeout=TIMEOUT_S)
        # Both are full: the fifth waits for whoever ends first.
        assert not any(replica.started.acquire(timeout=0.05) for replica in replicas)
        replicas[1].gate.set()
        assert replicas[1].started.acquire(timeout=TIMEOUT_S)
        replicas[0].gate.set()
        kernels = sorted(run.result(TIMEOUT_S).kernel for run in runs)
    assert kernels == ["on 0"] * 2 + ["on 1"] * 3


def test_all_gpus_busy_for_a_second_are_one_busy_second() -> None:
    _, engine = make()
    reports = [engine.run(make_batch(3)) for _ in range(2)]
    assert sum(report.busy_s for report in reports) == 0.5


def test_a_failed_batch_leaves_its_place_to_the_next() -> None:
    replicas, engine = make(1)
    for _ in range(5):
        replicas[0].fail_next = EngineError("bad batch")
        with pytest.raises(EngineError, match="bad batch"):
            engine.run(make_batch(3))
    engine.run(make_batch(3))


def test_one_dead_gpu_is_a_dead_engine() -> None:
    replicas, engine = make()
    replicas[0].fail_next = EngineDead("gone")
    with pytest.raises(EngineDead, match="gone"):
        engine.run(make_batch(3))


def test_the_self_test_is_of_every_gpu() -> None:
    replicas, engine = make()
    engine.self_test()
    assert [replica.tested for replica in replicas] == [1, 1]
    replicas[1].self_test_error = EngineError("wrong answer")
    with pytest.raises(EngineError, match="wrong answer"):
        engine.self_test()


def test_many_threads_lose_no_place() -> None:
    replicas, engine = make(3)
    threads = [
        threading.Thread(target=lambda: [engine.run(make_batch(1)) for _ in range(20)])
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sum(len(replica.batches) for replica in replicas) == 120
    assert engine._in_flight == [0, 0, 0]


class Launching(Replica):
    """Launches as many batches as it may run."""

    def expected_s(self, output: Output, tokens: int) -> float | None:
        return 1e-4

    def launch(self, batch: Batch) -> Launched | None:
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        reports: list[BatchReport] = []
        return Launched(
            f"on {self.index}",
            lambda seconds: seconds > 0,
            lambda: reports.append(self.run(batch)),
            reports.pop,
        )


def test_launched_batches_go_to_the_gpu_that_idles_and_no_more_than_it_takes() -> None:
    replicas = [Launching(index, concurrency=1) for index in range(2)]
    engine = ReplicatedEngine(replicas)
    assert isinstance(engine, LaunchesBatches)
    assert engine.expected_s(Output.MLP, 3) == 1e-4
    first, second = engine.launch(make_batch(3)), engine.launch(make_batch(3))
    assert engine.launch(make_batch(3)) is None
    assert (first.spin(1), first.spin(0)) == (True, False)
    assert (first.kernel, second.kernel) == ("on 0", "on 1")
    for launched in (second, first):
        launched.finish()
    assert engine.launch(make_batch(3)) is None, "nobody has read the timers yet"
    reports = [second.report(), first.report()]
    assert [report.kernel for report in reports] == ["on 1", "on 0"]
    assert sum(report.busy_s for report in reports) == 0.5
    assert engine._in_flight == [0, 0]


@pytest.mark.parametrize("when", ["launch", "finish"])
def test_a_launched_batch_that_fails_leaves_its_place_to_the_next(when: str) -> None:
    replicas = [Launching(0, concurrency=1)]
    engine = ReplicatedEngine(replicas)
    for _ in range(3):
        launched = engine.launch(make_batch(3)) if when == "finish" else None
        replicas[0].fail_next = EngineDead("gone")
        with pytest.raises(EngineDead, match="gone"):
            launched.finish() if launched else engine.launch(make_batch(3))
    assert engine._in_flight == [0]


def test_replicas_that_cannot_launch_do_not() -> None:
    _, engine = make()
    assert engine.expected_s(Output.MLP, 3) is None
    assert engine.launch(make_batch(3)) is None
    assert engine._in_flight == [0, 0]


class Starting(Replica):
    """Ends its batches when it is asked to collect."""

    def __init__(self, index: int, concurrency: int = 1) -> None:
        super().__init__(index, concurrency)
        self.descriptors = (100 + index,)
        self.over: list[tuple[Batch, OnEnd]] = []
        self.takes = True

    def starts(self, output: Output, tokens: int) -> bool:
        return tokens == 3

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        if self.takes:
            self.over.append((batch, ended))
        return self.takes

    def collect(self) -> None:
        over, self.over = self.over, []
        for batch, ended in over:
            ended(self.run(batch))


def test_started_batches_go_to_the_gpu_that_idles_and_no_more_than_it_takes() -> None:
    replicas = [Starting(index) for index in range(2)]
    engine = ReplicatedEngine(replicas)
    assert isinstance(engine, StartsBatches)
    assert engine.descriptors == (100, 101)
    assert [engine.starts(Output.MLP, tokens) for tokens in (3, 4)] == [True, False]
    reports: list[BatchReport | Exception] = []
    assert [engine.start(make_batch(3), reports.append) for _ in range(3)] == [True, True, False]
    engine.collect()
    assert [report.kernel for report in reports] == ["on 0", "on 1"]
    assert sum(report.busy_s for report in reports) == 0.5
    assert engine._in_flight == [0, 0]


def test_a_batch_that_is_not_started_leaves_its_place_to_the_next() -> None:
    replicas = [Starting(0)]
    engine = ReplicatedEngine(replicas)
    replicas[0].takes = False
    assert not engine.start(make_batch(3), lambda outcome: None)
    replicas[0].fail_next = EngineDead("gone")
    with pytest.raises(EngineDead, match="gone"):
        engine.start(make_batch(3), lambda outcome: None)
    assert engine._in_flight == [0]
    outcomes: list[BatchReport | Exception] = []
    replicas[0].takes = True
    assert engine.start(make_batch(3), outcomes.append)
    _, ended = replicas[0].over.pop()
    ended(EngineError("failed"))
    assert str(outcomes[0]) == "failed"
    assert engine._in_flight == [0]


def test_replicas_that_cannot_start_do_not() -> None:
    _, engine = make()
    assert engine.descriptors == ()
    assert not engine.starts(Output.MLP, 3)
    assert not engine.start(make_batch(3), lambda outcome: None)
    engine.collect()
    assert engine._in_flight == [0, 0]
