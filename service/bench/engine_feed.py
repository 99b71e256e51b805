"""The engine alone: as many batches as it takes, always, and no HTTP around them."""

from __future__ import annotations

import selectors
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.batching.worker import allocate_outputs
from service.engine.base import (
    Batch,
    BatchReport,
    Buffer,
    Engine,
    LendsHostMemory,
    OnEnd,
    Output,
    Segment,
    StartsBatches,
)
from service.errors import EngineError

_SAMPLES = 50
# Until the first batches are through.
_FIRST_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """What every batch of a measurement is made of.

    Attributes:
        requests: Requests of a batch.
        rows: Rows of a request.
    """

    requests: int
    rows: int

    @property
    def tokens(self) -> int:
        """Rows of a batch."""
        return self.requests * self.rows


@dataclass(frozen=True, slots=True)
class Fed:
    """What an engine did while it was kept supplied.

    Attributes:
        batches: That ended.
        elapsed_s: From the first batch's start to the last one's end.
        busy_s: Of it, time in which the device computed.
    """

    batches: int
    elapsed_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Alone:
    """Medians of one batch at a time.

    Attributes:
        total_s: From the call to its return.
        device_s: Of it, copies and kernels.
    """

    total_s: float
    device_s: float


class Feeder:
    """Inputs of one batch at a time, and fresh outputs for each, as the service has them."""

    def __init__(self, engine: Engine, case: Case, seed: int) -> None:
        """Draw the inputs.

        Args:
            engine: Warm.
            case: What a batch is made of.
            seed: Of the rows, which are never zeros: those take a GPU less power.
        """
        self._engine = engine
        self._case = case
        spec = engine.model
        self._nbytes = case.rows * spec.hidden_size * spec.dtype.itemsize
        generator = np.random.default_rng(seed)
        self._inputs = [self._draw(generator) for _ in range(case.requests)]

    def run(self) -> tuple[float, float]:
        """One batch of the first layer; seconds in which the device computed, and all of its."""
        report = self._engine.run(self._batch())
        return report.busy_s, sum(report.stages.values())

    def start(self, engine: StartsBatches, ended: OnEnd) -> bool:
        """The same in the engine's own threads, if it can."""
        return engine.start(self._batch(), ended)

    def _batch(self) -> Batch:
        spec, case = self._engine.model, self._case
        outputs = allocate_outputs([self._nbytes] * case.requests, self._allocate)
        segments = [
            Segment(case.rows, data, spec.dtype, output, spec.dtype)
            for data, output in zip(self._inputs, outputs, strict=True)
        ]
        return Batch(spec.layers[0], Output.MLP, segments)

    def _allocate(self, nbytes: int) -> Buffer:
        if isinstance(self._engine, LendsHostMemory):
            return self._engine.allocate_host(nbytes)
        return bytearray(nbytes)

    def _draw(self, generator: np.random.Generator) -> memoryview:
        """Normal numbers, as bf16: the upper half of FP32."""
        memory = memoryview(self._allocate(self._nbytes))
        numbers = generator.standard_normal(self._nbytes // 2, dtype=np.float32)
        memory[:] = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).data
        return memory


def keep_supplied(engine: Engine, case: Case, seconds: float) -> Fed:
    """Run `engine.concurrency` batches at a time for so long, as the service would.

    Raises:
        EngineError: a batch failed.
    """
    feeders = [Feeder(engine, case, seed) for seed in range(engine.concurrency)]
    fed = _keep_starting(engine, feeders, seconds) if isinstance(engine, StartsBatches) else None
    return fed or _keep_running(feeders, seconds)


def _keep_starting(engine: StartsBatches, feeders: Sequence[Feeder], seconds: float) -> Fed | None:
    """By the engine's own threads; None where they do not run such batches."""
    running = batches = 0
    busy_s = 0.0
    errors: list[Exception] = []
    ends_at = time.perf_counter() + _FIRST_S

    def start(feeder: Feeder) -> bool:
        nonlocal running

        def ended(outcome: BatchReport | Exception) -> None:
            nonlocal running, batches, busy_s
            running -= 1
            if isinstance(outcome, Exception):
                errors.append(outcome)
                return
            batches += 1
            busy_s += outcome.busy_s
            if time.perf_counter() < ends_at and not errors:
                start(feeder)

        begun = False
        # What is under way has to end first, whatever this raises.
        try:
            begun = feeder.start(engine, ended)
        except EngineError as error:
            errors.append(error)
        running += begun
        return begun

    with selectors.DefaultSelector() as selector:
        for descriptor in engine.descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        if not start(feeders[0]) and not errors:
            return None
        while not batches and not errors:
            selector.select()
            engine.collect()
        for feeder in feeders[1:]:
            start(feeder)
        began, batches, busy_s = time.perf_counter(), 0, 0.0
        ends_at = began + seconds
        while running:
            selector.select()
            engine.collect()
        elapsed_s = time.perf_counter() - began
    if errors:
        raise errors[0]
    return Fed(batches, elapsed_s, busy_s)


def _keep_running(feeders: Sequence[Feeder], seconds: float) -> Fed:
    """By a thread for each."""
    done: list[tuple[int, float]] = []
    errors: list[BaseException] = []
    together = threading.Barrier(len(feeders) + 1)
    ends_at = 0.0

    def work(feeder: Feeder) -> None:
        batches, busy_s = 0, 0.0
        try:
            feeder.run()
            together.wait()
            while time.perf_counter() < ends_at:
                busy_s += feeder.run()[0]
                batches += 1
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            together.abort()
        done.append((batches, busy_s))

    threads = [threading.Thread(target=work, args=(feeder,)) for feeder in feeders]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    ends_at = began + _FIRST_S
    try:
        together.wait()
        began = time.perf_counter()
        ends_at = began + seconds
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - began
    if errors:
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )
    return Fed(sum(one for one, _ in done), elapsed_s, sum(busy for _, busy in done))


def run_alone(engine: Engine, case: Case) -> Alone:
    """One batch after the other."""
    feeder = Feeder(engine, case, 0)
    totals, devices = [], []
    for _ in range(_SAMPLES):
        began = time.perf_counter()
        _, device_s = feeder.run()
        totals.append(time.perf_counter() - began)
        devices.append(device_s)
    return Alone(statistics.median(totals), statistics.median(devices))
