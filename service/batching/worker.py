"""Where the engine runs: in threads, its own or ours, or on the event loop for a short batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from service.batching.batcher import Done, Outcome
from service.batching.inline import PATIENCE_S, runs_inline
from service.batching.request import PendingRequest
from service.engine.base import (
    Batch,
    BatchReport,
    Buffer,
    DeviceWindow,
    Engine,
    Launched,
    LaunchesBatches,
    LendsHostMemory,
    Rows,
    Segment,
    StartsBatches,
)
from service.errors import EngineDead

# Of several answers together.
_BLOCK_BYTES = 4 << 20

Outputs: TypeAlias = list[memoryview]
_Job: TypeAlias = Callable[[], None]
_Result = TypeVar("_Result")


class EngineWorker:
    """As many daemon threads as the engine runs batches at once.

    Daemon threads and a queue of our own instead of an executor: an executor joins its threads at
    exit, so a kernel that hangs would keep a dead service from exiting.

    Args:
        engine: Need not be warm.
        admitted: Requests that are admitted and not with the engine.
    """

    def __init__(self, engine: Engine, admitted: Callable[[], int] = lambda: 0) -> None:
        self._engine = engine
        self._admitted = admitted
        self._launcher = engine if isinstance(engine, LaunchesBatches) else None
        self._starter = engine if isinstance(engine, StartsBatches) else None
        self._running = 0
        # With the engine's own threads.
        self._started = 0
        self._none_started = asyncio.Event()
        self._allocate: Callable[[int], Buffer] = (
            engine.allocate_host if isinstance(engine, LendsHostMemory) else bytearray
        )
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._dead: EngineDead | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"engine-{index}", daemon=True)
            for index in range(engine.concurrency)
        ]
        for thread in self._threads:
            thread.start()
        self._descriptors: tuple[int, ...] = ()
        if self._starter is not None:
            self._descriptors = self._starter.descriptors
            for descriptor in self._descriptors:
                self._loop.add_reader(descriptor, self._starter.collect)

    def start(self, members: Sequence[PendingRequest], done: Done) -> None:
        """Compute a batch; `done` gets its outcome later, on the event loop's thread."""

        def ended(outcome: Outcome) -> None:
            self._running -= 1
            done(outcome)

        engine = self._launcher
        inline = engine is not None and self._runs_inline(engine, members)
        self._running += 1
        if engine is not None and inline:
            self._run_inline(engine, members, ended)
        else:
            self._run_apart(members, ended)

    def _runs_inline(self, engine: LaunchesBatches, members: Sequence[PendingRequest]) -> bool:
        def expected_s() -> float | None:
            return engine.expected_s(members[0].key[1], sum(one.tokens for one in members))

        return runs_inline(self._running, self._admitted(), expected_s)

    def _run_inline(
        self, engine: LaunchesBatches, members: Sequence[PendingRequest], ended: Done
    ) -> None:
        """Launch the batch here; whatever else the loop has to do is done while it runs."""

        def launch() -> tuple[Launched | None, Outputs]:
            batch, outputs = self._form(members)
            return engine.launch(batch), outputs

        begun = self._attempt(launch)
        if isinstance(begun, BaseException):
            self._loop.call_soon(ended, begun)
            return
        launched, outputs = begun
        if launched is None:
            self._run_apart(members, ended)
        else:
            self._loop.call_soon(self._collect, launched, outputs, ended)

    def _run_apart(self, members: Sequence[PendingRequest], ended: Done) -> None:
        """Run the batch in a thread: of the engine's own where it has them and takes it."""
        engine = self._starter
        key, tokens = members[0].key, sum([one.tokens for one in members])
        if engine is not None and engine.starts(key[1], tokens):
            self._start(engine, members, ended)
        else:
            self._run_in_thread(lambda: self._run(members), ended)

    def _start(self, engine: StartsBatches, members: Sequence[PendingRequest], ended: Done) -> None:
        """Have the engine's own threads run the batch, or one of ours where they do not."""
        formed = self._attempt(lambda: self._form(members))
        if isinstance(formed, BaseException):
            self._loop.call_soon(ended, formed)
            return
        batch, outputs = formed

        def over(outcome: BatchReport | Exception) -> None:
            self._started -= 1
            if not self._started:
                self._none_started.set()
            if isinstance(outcome, EngineDead):
                self._dead = outcome
            ended(outcome if isinstance(outcome, Exception) else (outcome, outputs))

        begun = self._attempt(lambda: engine.start(batch, over))
        if isinstance(begun, BaseException):
            self._loop.call_soon(ended, begun)
        elif begun:
            self._started += 1
        else:
            self._run_in_thread(lambda: (self._engine.run(batch), outputs), ended)

    def _collect(self, launched: Launched, outputs: Outputs, ended: Done) -> None:
        """Wait for a launched batch if it is over soon; a thread goes on where it is not."""

        def finish() -> tuple[Launched, Outputs]:
            launched.finish()
            return launched, outputs

        def finish_and_report() -> tuple[BatchReport, Outputs]:
            launched.finish()
            return launched.report(), outputs

        if launched.spin(PATIENCE_S):
            ended(self._attempt(finish))
        else:
            self._run_in_thread(finish_and_report, ended)

    def _run_in_thread(
        self, function: Callable[[], _Result], ended: Callable[[_Result | BaseException], None]
    ) -> None:
        """Have it called by one of the threads, and `ended` on the event loop's."""

        def job() -> None:
            outcome = self._attempt(function)
            self._report(lambda: ended(outcome))

        self._jobs.put(job)

    def call(self, function: Callable[[], object]) -> asyncio.Future[None]:
        """Run a function of the engine on one of our threads, between that thread's batches."""
        future: asyncio.Future[None] = self._loop.create_future()

        def ended(outcome: object) -> None:
            _resolve(future, outcome if isinstance(outcome, BaseException) else None)

        self._run_in_thread(function, ended)
        return future

    async def stop(self) -> None:
        """Let the threads finish what was started, then close the engine."""
        # A batch that was launched is collected in this turn of the loop, or handed to a thread.
        await asyncio.sleep(0)
        # What comes now, as what failed is tried again, goes by our threads, which are waited for.
        self._starter = None
        while self._started:
            self._none_started.clear()
            await self._none_started.wait()
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        together = threading.Barrier(len(self._threads))
        # A thread that waits takes no second job: when all have met, no batch runs any more.
        await asyncio.gather(*(self.call(together.wait) for _ in self._threads))
        await self.call(self._engine.close)
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _attempt(self, function: Callable[[], _Result]) -> _Result | BaseException:
        # A dead engine is left alone at once: jobs that are queued behind the batch that killed it
        # must not reach it, and the event loop may not have heard of it yet.
        if self._dead is not None:
            return self._dead
        try:
            return function()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it decides what it means
            if isinstance(error, EngineDead):
                self._dead = error
            return error

    def _report(self, callback: Callable[[], None]) -> None:
        # RuntimeError says that the loop is closed: a dead engine is not waited for, and what it
        # reports afterwards nobody hears.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _run(self, members: Sequence[PendingRequest]) -> tuple[BatchReport, Outputs]:
        # Outputs are allocated here, so that their page faults are paid by this thread.
        batch, outputs = self._form(members)
        return self._engine.run(batch), outputs

    def _form(self, members: Sequence[PendingRequest]) -> tuple[Batch, Outputs]:
        """The batch, with memory for its answers."""
        sizes = [member.output_nbytes for member in members if member.output_data is None]
        fresh = iter(allocate_outputs(sizes, self._allocate))
        outputs: list[Rows] = [
            next(fresh) if member.output_data is None else member.output_data for member in members
        ]
        layer, output = members[0].key
        segments = [
            Segment(
                tokens=member.tokens,
                input=member.data,
                input_dtype=member.dtype,
                output=data,
                output_dtype=member.output_dtype,
            )
            for member, data in zip(members, outputs, strict=True)
        ]
        return Batch(layer, output, segments), [_on_host(data) for data in outputs]


def _on_host(answer: Rows) -> memoryview:
    # One on the device is where its client wants it, and nobody else can read it.
    return memoryview(b"") if isinstance(answer, DeviceWindow) else answer


def allocate_outputs(sizes: Sequence[int], allocate: Callable[[int], Buffer]) -> list[memoryview]:
    """Fresh memory for each answer, because the transport may hold on to it long after.

    Answers lie one behind the other in blocks, which are asked for and copied to at once; but
    whoever is slow to read its answer keeps a whole block, so a block is small, or one answer.

    Args:
        sizes: Of the answers, in bytes.
        allocate: Makes a block that is freed when nothing refers to it.
    """
    if len(sizes) == 1:
        return [memoryview(allocate(sizes[0]))]
    outputs: list[memoryview] = []
    first = 0
    while first < len(sizes):
        starts = [0]
        ends = first + 1
        nbytes = sizes[first]
        while ends < len(sizes) and _aligned(nbytes) + sizes[ends] <= _BLOCK_BYTES:
            starts.append(_aligned(nbytes))
            nbytes = starts[-1] + sizes[ends]
            ends += 1
        block = memoryview(allocate(nbytes))
        outputs += [
            block[start : start + size]
            for start, size in zip(starts, sizes[first:ends], strict=True)
        ]
        first = ends
    return outputs


def _aligned(nbytes: int) -> int:
    """Where the next answer may begin, whatever its element type."""
    return -(-nbytes // 8) * 8


def _resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
