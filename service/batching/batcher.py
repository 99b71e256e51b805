"""The batcher: owns the queue, starts batches when the engine is free, ends each request once.

Everything here runs on the event loop's thread and nothing blocks: requests arrive by `submit`,
the engine reports by callback, and after either the pump asks the policy what to start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from service.batching.policy import Limits, Take, Wait, select_batch
from service.batching.request import Answer, GroupKey, PendingRequest, State
from service.engine.base import BatchReport, Launched, ModelSpec, Output
from service.errors import Cancelled, DeadlineExceeded, EngineDead, EngineError, ServiceError
from service.metrics import Metrics

logger = logging.getLogger(__name__)

# A batch that was launched has its answers before anybody has read what it took.
Outcome: TypeAlias = tuple[BatchReport | Launched, Sequence[memoryview]] | BaseException
Done: TypeAlias = Callable[[Outcome], None]


class Start(Protocol):
    """Hands members to the engine; `done` is called once, later, on the event loop's thread."""

    def __call__(self, members: Sequence[PendingRequest], done: Done) -> None:
        """Start computing; must not block."""


class Batcher:
    """Forms batches out of submitted requests.

    Args:
        start: Hands a batch to the engine.
        model: What is served, for counting FLOPs.
        concurrency: Batches that may be with the engine at once.
        limits: Bounds of one batch, and of small ones that run at a time.
        metrics: Where batches are counted.
        on_dead: Called once when the engine must not be used again.
        clock: Monotonic seconds, for arrivals and deadlines.
        hang_timeout_s: Seconds after which a batch with the engine counts as hung, and the engine
            as dead; 0 is never.
    """

    def __init__(
        self,
        start: Start,
        *,
        model: ModelSpec,
        concurrency: int,
        limits: Limits,
        metrics: Metrics,
        on_dead: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        hang_timeout_s: float = 0.0,
    ) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._start = start
        self._model = model
        self._free = concurrency
        # Of those with the engine, by group.
        self._small: Counter[GroupKey] = Counter()
        self._limits = limits
        self._metrics = metrics
        self._on_dead = on_dead
        # Not the loop's own clock: uvloop's stands still within one iteration and counts in ms.
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Insertion order is arrival order, and a request that leaves early is removed in O(1).
        self._groups: dict[GroupKey, dict[PendingRequest, None]] = {}
        self._running: dict[PendingRequest, None] = {}
        self._retries: deque[PendingRequest] = deque()
        self._pump_handle: asyncio.Handle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._draining = False
        self._dead: BaseException | None = None

    def submit(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a request whose arguments were validated; its future ends exactly once.

        The future's result is an Answer; its exception DeadlineExceeded, EngineError, EngineDead
        or Cancelled. The lease is returned by the batcher in every case.
        """
        future = request.future = self._loop.create_future()
        request.arrival = self._clock()
        if self._dead is not None:
            self._finish(request, EngineDead(f"engine: {self._dead}"))
        elif request.tokens == 0:
            self._finish(request, Answer(memoryview(b""), "none", 0, 0.0, 0.0))
        else:
            self._groups.setdefault(request.key, {})[request] = None
            if request.deadline is not None:
                left_s = max(0.0, request.deadline - request.arrival)
                request.timer = self._loop.call_later(left_s, self._expire, request)
            self._schedule_pump()
        return future

    def cancel(self, request: PendingRequest) -> None:
        """The client has left. What waits is dropped; what runs is computed and thrown away."""
        if request.state is State.QUEUED:
            self._remove(request)
            self._finish(request, Cancelled("request: the client left before its batch started"))
        elif request.state is State.RUNNING and not request.future.done():
            # The engine still reads the slot, so the lease stays until the batch is over.
            request.future.set_exception(Cancelled("request: the client left while it ran"))

    def drain(self) -> None:
        """From now on nobody waits for company."""
        self._draining = True
        self._schedule_pump()

    def fail_all(self, error: BaseException) -> None:
        """The engine is dead: end everything that waits or runs, and refuse what comes."""
        if self._dead is None:
            self.end_all(error)
            self._on_dead(error)

    def end_all(self, error: BaseException) -> None:
        """End everything that waits or runs, and refuse what comes; the engine is left alone."""
        if self._dead is not None:
            return
        self._dead = error
        verdict = EngineDead(f"engine: {error}")
        waiting = [request for group in self._groups.values() for request in group]
        waiting.extend(self._retries)
        self._groups.clear()
        self._retries.clear()
        for request in waiting:
            self._finish(request, verdict)
        for request in self._running:
            # A hung engine may still read their slots, so the leases are not returned.
            if not request.future.done():
                request.future.set_exception(verdict)

    def _schedule_pump(self) -> None:
        # One pass per loop iteration: requests that arrive together are batched together.
        if self._pump_handle is None:
            self._pump_handle = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_handle = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        try:
            while self._free and self._dead is None and self._start_one():
                pass
        except Exception as error:
            # Which the loop would only log, and the requests would hang.
            self.fail_all(error)
            raise

    def _start_one(self) -> bool:
        """Start the batch that is due; False when there is none."""
        while self._retries:
            request = self._retries.popleft()
            if request.future.done():
                self._finish(request)
                continue
            self._launch([request], "retry")
            return True
        if not self._groups:
            return False
        decision = self._decide()
        if isinstance(decision, Take):
            self._take(decision)
            return True
        if decision is not None:
            left_s = max(0.0, decision.until - self._clock())
            self._wake = self._loop.call_later(left_s, self._schedule_pump)
        return False

    def _decide(self) -> Take[GroupKey] | Wait | None:
        try:
            return select_batch(
                self._groups,
                self._limits,
                self._clock(),
                draining=self._draining,
                small_batches=self._small,
            )
        except Exception as error:
            # Nobody can tell whose request the policy stumbled over, so all that wait are failed
            # at once, and those who come later are served.
            logger.exception("batch formation failed; %d groups dropped", len(self._groups))
            victims = [request for group in self._groups.values() for request in group]
            self._groups.clear()
            for request in victims:
                self._finish(request, EngineError(f"batch formation: {error!r}"))
            return None

    def _take(self, decision: Take[GroupKey]) -> None:
        """Start what the policy chose, unless some of it has expired: then it must choose again."""
        members = list(islice(self._groups[decision.key], decision.count))
        now = self._clock()
        # The loop runs a due timer after the callbacks that are ready, such as this one.
        late = [m for m in members if m.deadline is not None and m.deadline <= now]
        for member in late:
            self._expire(member)
        if not late:
            if len(members) == len(self._groups[decision.key]):
                del self._groups[decision.key]
            else:
                for member in members:
                    self._remove(member)
            self._launch(members, decision.trigger)

    def _launch(self, members: list[PendingRequest], trigger: str) -> None:
        self._free -= 1
        now = self._clock()
        tokens = requests = 0
        queued = []
        for member in members:
            tokens += member.tokens
            requests += member.requests
            if member.state is State.QUEUED:
                self._stop_timer(member)
                member.state = State.RUNNING
                member.started = now
                member.lease.start()
                queued.append(member)
            self._running[member] = None
        if self._limits.is_small(tokens):
            self._small[members[0].key] += 1
        watchdog: asyncio.TimerHandle | None = None
        self._start(members, lambda outcome: self._ended(members, tokens, watchdog, outcome))
        # The engine is at work meanwhile.
        if self._hang_timeout_s:
            watchdog = self._loop.call_later(self._hang_timeout_s, self._hung, tokens)
        self._metrics.batch_started(trigger, tokens, requests)
        for member in queued:
            # Of several that came as one, the mean.
            waited_s = now - member.arrival + member.waited_s / member.requests
            self._metrics.stage("queue", waited_s, member.requests)

    def _hung(self, tokens: int) -> None:
        # Nothing can end a kernel but the end of its process.
        self.fail_all(
            EngineDead(f"batch of {tokens} tokens did not end within {self._hang_timeout_s:g} s")
        )

    def _ended(
        self,
        members: list[PendingRequest],
        tokens: int,
        watchdog: asyncio.TimerHandle | None,
        outcome: Outcome,
    ) -> None:
        """The engine reports on a batch."""
        if watchdog is not None:
            watchdog.cancel()
        self._free += 1
        if self._limits.is_small(tokens):
            self._small[members[0].key] -= 1
        try:
            if isinstance(outcome, tuple):
                self._succeeded(members, tokens, *outcome)
            else:
                self._failed(members, outcome)
            # Only now, so that a bug above finds whom it left without an answer.
            for member in members:
                del self._running[member]
        except Exception as error:
            # Which the loop would only log, and the requests would hang.
            self.fail_all(error)
            raise
        if self._groups or self._retries:
            self._schedule_pump()

    def _succeeded(
        self,
        members: list[PendingRequest],
        tokens: int,
        ran: BatchReport | Launched,
        outputs: Sequence[memoryview],
    ) -> None:
        output = members[0].key[1]
        if isinstance(ran, BatchReport):
            self._count(output, tokens, ran)
        now = self._clock()
        for member, data in zip(members, outputs, strict=True):
            queue_s = member.started - member.arrival
            self._finish(
                member,
                Answer(data, ran.kernel, tokens, queue_s, now - member.started),
            )
        if isinstance(ran, Launched):
            # Behind those who wake up for their answers, and before the loop sees a new request.
            self._loop.call_soon(self._read_report, output, tokens, ran)

    def _read_report(self, output: Output, tokens: int, launched: Launched) -> None:
        try:
            self._count(output, tokens, launched.report())
        except Exception as error:
            # Of a batch that went well: the device is lost, or this is a bug.
            self.fail_all(error)
            raise

    def _count(self, output: Output, tokens: int, report: BatchReport) -> None:
        self._metrics.batch_succeeded(
            tokens=tokens,
            flops=self._model.flops(output, tokens),
            busy_s=report.busy_s,
            kernels=report.kernels,
            stages=report.stages,
        )

    def _failed(self, members: list[PendingRequest], error: BaseException) -> None:
        if self._dead is not None:
            for member in members:
                self._finish(member)
        elif isinstance(error, EngineDead):
            for member in members:
                self._finish(member, error)
            self.fail_all(error)
        elif len(members) == 1:
            logger.error("request of %d tokens failed: %r", members[0].tokens, error)
            self._finish(members[0], EngineError(f"engine: {error}"))
        else:
            # One bad member must not fail its neighbours: each gets a second chance, alone.
            logger.warning("batch of %d requests failed, retrying: %r", len(members), error)
            self._retries.extend(members)

    def _expire(self, request: PendingRequest) -> None:
        self._remove(request)
        waited = self._clock() - request.arrival
        self._finish(
            request,
            DeadlineExceeded(f"deadline: passed after {waited:.3f} s in the queue; not executed"),
        )

    def _remove(self, request: PendingRequest) -> None:
        group = self._groups[request.key]
        del group[request]
        if not group:
            del self._groups[request.key]

    def _stop_timer(self, request: PendingRequest) -> None:
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _finish(self, request: PendingRequest, result: Answer | ServiceError | None = None) -> None:
        """End a request; without a result, one whose future has ended already."""
        self._stop_timer(request)
        request.state = State.DONE
        request.lease.release()
        if result is None or request.future.done():
            return
        if isinstance(result, Answer):
            request.future.set_result(result)
        else:
            request.future.set_exception(result)
