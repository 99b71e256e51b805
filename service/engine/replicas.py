"""Several GPUs behind one queue: the weights on each, and who has least to do is next."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from service.engine.base import (
    Batch,
    BatchReport,
    Buffer,
    Engine,
    Gpu,
    Launched,
    LaunchesBatches,
    LendsHostMemory,
    ModelSpec,
    OnEnd,
    OnGpus,
    Output,
    StartsBatches,
)


def select_replica(in_flight: Sequence[int], concurrency: Sequence[int]) -> int | None:
    """Which replica takes the next batch.

    Args:
        in_flight: Batches that each runs.
        concurrency: Batches that each may run at once.

    Returns:
        The first of those that run the smallest share of what they may; None where all are full.
    """
    free = [index for index, limit in enumerate(concurrency) if in_flight[index] < limit]
    return min(free, key=lambda index: in_flight[index] / concurrency[index], default=None)


class ReplicatedEngine:
    """Implements `service.engine.base.Engine` and what `service.engine.fused` has besides.

    That is `OnGpus`, `LendsHostMemory`, `LaunchesBatches` and `StartsBatches`.

    They serve the same model by the same backend. Where one of them is dead, this one is: a
    supervisor's restart finds out which GPU is to blame.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)
        # Asked once: to ask a protocol takes longer than most of what is done with the answer.
        self._starters = tuple(
            engine if isinstance(engine, StartsBatches) else None for engine in engines
        )
        self._concurrency = [engine.concurrency for engine in engines]
        self._in_flight = [0] * len(engines)
        self._changed = threading.Condition()

    @property
    def backend(self) -> str:
        """That of each."""
        return self._engines[0].backend

    @property
    def device(self) -> str:
        """What they run on, such as `2 x NVIDIA H200`."""
        names = [engine.device for engine in self._engines]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of theirs."""
        return tuple(
            gpu for engine in self._engines if isinstance(engine, OnGpus) for gpu in engine.gpus
        )

    @property
    def concurrency(self) -> int:
        """Batches of all together."""
        return sum(self._concurrency)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Those of each."""
        return self._engines[0].kernels

    @property
    def model(self) -> ModelSpec:
        """What is resident on each."""
        return self._engines[0].model

    @property
    def peak_flops(self) -> float | None:
        """Dense peak FLOP/s of all GPUs together; None where one is not known."""
        peaks = [engine.peak_flops for engine in self._engines]
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def allocate_host(self, nbytes: int) -> Buffer:
        """Memory that every GPU reads and writes fast: page-locked for one, it is for all."""
        first = self._engines[0]
        if isinstance(first, LendsHostMemory):
            return first.allocate_host(nbytes)
        return bytearray(nbytes)

    def warm_up(self, max_batch_tokens: int) -> None:
        """One after the other.

        Raises:
            EngineError: one failed.
        """
        for engine in self._engines:
            engine.warm_up(max_batch_tokens)

    def run(self, batch: Batch) -> BatchReport:
        """Fill every segment's output, on the GPU that has least to do.

        Returns:
            That engine's report, but busy seconds as a share of all GPUs: all busy for a second are
            one second.

        Raises:
            EngineDead: that GPU can run nothing any more.
            EngineError: this batch failed.
        """
        with self._changed:
            while (index := self._take()) is None:
                self._changed.wait()
        try:
            return self._shared(self._engines[index].run(batch))
        finally:
            self._give_back(index)

    def expected_s(self, output: Output, tokens: int) -> float | None:
        """That of the first; they are alike."""
        first = self._engines[0]
        return first.expected_s(output, tokens) if isinstance(first, LaunchesBatches) else None

    def launch(self, batch: Batch) -> Launched | None:
        """Launch it on the GPU that has least to do; None while all are full.

        Raises:
            EngineDead: that GPU can run nothing any more.
            EngineError: this batch failed.
        """
        with self._changed:
            index = self._take()
        if index is None:
            return None
        engine = self._engines[index]
        try:
            launched = engine.launch(batch) if isinstance(engine, LaunchesBatches) else None
        except BaseException:
            self._give_back(index)
            raise
        if launched is None:
            self._give_back(index)
            return None
        return self._launched(index, launched)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those of all."""
        return tuple(
            descriptor
            for starter in self._starters
            if starter is not None
            for descriptor in starter.descriptors
        )

    def starts(self, output: Output, tokens: int) -> bool:
        """As the first; they are alike."""
        first = self._starters[0]
        return first is not None and first.starts(output, tokens)

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        """Start it on the GPU that has least to do; False while all are full, or as it says.

        Raises:
            EngineError: it cannot be started.
        """
        with self._changed:
            index = self._take()
        if index is None:
            return False

        def over(outcome: BatchReport | Exception) -> None:
            self._give_back(index)
            ended(outcome if isinstance(outcome, Exception) else self._shared(outcome))

        starter = self._starters[index]
        begun = False
        try:
            begun = starter is not None and starter.start(batch, over)
        finally:
            if not begun:
                self._give_back(index)
        return begun

    def collect(self) -> None:
        """Tell of what is over on any of them."""
        for starter in self._starters:
            if starter is not None:
                starter.collect()

    def self_test(self) -> None:
        """Test each.

        Raises:
            EngineError: one gives wrong answers.
            EngineDead: one can run nothing any more.
        """
        for engine in self._engines:
            engine.self_test()

    def close(self) -> None:
        """Let go of all devices."""
        for engine in self._engines:
            engine.close()

    def _take(self) -> int | None:
        """An engine with room for a batch, which is taken; None where there is none."""
        index = select_replica(self._in_flight, self._concurrency)
        if index is not None:
            self._in_flight[index] += 1
        return index

    def _launched(self, index: int, launched: Launched) -> Launched:
        """The same, and its place is given back when it is through."""

        def finish() -> None:
            try:
                launched.finish()
            except BaseException:
                self._give_back(index)
                raise

        def report() -> BatchReport:
            try:
                return self._shared(launched.report())
            finally:
                self._give_back(index)

        return replace(launched, finish=finish, report=report)

    def _shared(self, report: BatchReport) -> BatchReport:
        return replace(report, busy_s=report.busy_s / len(self._engines))

    def _give_back(self, index: int) -> None:
        with self._changed:
            self._in_flight[index] -= 1
            self._changed.notify()
