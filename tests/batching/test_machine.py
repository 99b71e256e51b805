"""Any order of events: requests come, leave and expire; batches succeed, fail and kill the engine.

Rules only note what is to happen. `flush` lets it happen within one iteration of the loop, because
that is where the order of events matters, and then checks what has to hold at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service.batching.batcher import Done
from service.batching.request import Answer, GroupKey, PendingRequest, State
from service.errors import Cancelled, DeadlineExceeded, EngineDead, EngineError, QueueFull
from tests.batching.harness import Harness, Started, has_slot
from tests.batching.virtual_time import VirtualTimeLoop, settle

MAX_QUEUE_TOKENS = 24
SLACK_S = 1e-6  # The loop's clock ticks in ns.


@dataclass(eq=False)
class Ticket:
    """What the test knows of a request."""

    number: int
    request: PendingRequest
    batches: list[Started] = field(default_factory=list)
    last_failed_alone: bool = False
    left_as: State | None = None

    @property
    def content(self) -> bytes:
        """Differs from that of every other request that could share its slot."""
        return bytes([self.number % 251 + 1]) * len(self.request.data)


class WatchedHarness(Harness):
    """Checks every batch at the moment it is handed to the engine."""

    def __init__(
        self, *, concurrency: int, max_tokens: int, delay_s: float, small_tokens: int
    ) -> None:
        super().__init__(
            small_tokens=small_tokens,
            concurrency=concurrency,
            max_tokens=max_tokens,
            delay_s=delay_s,
            max_queue_tokens=MAX_QUEUE_TOKENS,
        )
        self.concurrency = concurrency
        self.tickets: dict[PendingRequest, Ticket] = {}
        self.with_engine: list[Started] = []
        self.last_started: dict[GroupKey, int] = {}

    def _start(self, members: Sequence[PendingRequest], done: Done) -> None:
        super()._start(members, done)
        batch = self.started[-1]
        self.with_engine.append(batch)
        assert not self.deaths, "a dead engine was used"
        assert len(self.with_engine) <= self.concurrency
        assert len({member.key for member in members}) == 1
        assert 0 < sum(batch.tokens) <= self.limits.max_batch_tokens
        for member in members:
            self._check_member(batch, self.tickets[member])

    def _check_member(self, batch: Started, ticket: Ticket) -> None:
        request = ticket.request
        assert not request.future.done(), "its client has gone or has its answer"
        if ticket.batches:
            assert len(ticket.batches) == 1, "retried twice"
            assert len(batch.members) == 1, "retried in company"
            assert len(ticket.batches[0].members) > 1, "retried although it failed alone"
        else:
            assert self.last_started.get(request.key, -1) < ticket.number, "order"
            self.last_started[request.key] = ticket.number
            assert request.deadline is None or batch.at < request.deadline
        ticket.batches.append(batch)

    def check(self) -> None:
        """What holds whenever everything that can happen without time has happened."""
        now = self.loop.time()
        queued = [t.request for t in self.tickets.values() if t.request.state is State.QUEUED]
        tokens = sum(request.tokens for request in queued)
        nbytes = sum(len(request.data) for request in queued)
        assert self.queued == (len(queued), tokens, nbytes)
        assert len(self.deaths) <= 1
        for request in queued:
            assert not request.future.done()
            assert request.deadline is None or now < request.deadline + SLACK_S
        blocks = [id(t.request.data.obj) for t in self.tickets.values() if has_slot(t.request)]
        assert len(set(blocks)) == len(blocks), "two requests share a slot"
        if self.deaths:
            assert all(ticket.request.future.done() for ticket in self.tickets.values())
        elif len(self.with_engine) < self.concurrency:
            self._check_nothing_is_due(queued, now)

    def _check_nothing_is_due(self, queued: Sequence[PendingRequest], now: float) -> None:
        small = {
            batch.members[0].key
            for batch in self.with_engine
            if self.limits.is_small(sum(batch.tokens))
        }
        for request in queued:
            company = sum(other.tokens for other in queued if other.key == request.key)
            if request.key in small and self.limits.is_small(company):
                continue
            assert self.limits.max_queue_delay_s > 0
            assert now < request.arrival + self.limits.max_queue_delay_s + SLACK_S
        running = {member for batch in self.with_engine for member in batch.members}
        for request in self.tickets:
            if request.state is State.RUNNING and not request.future.done():
                assert request in running, "a retry is due"


class BatcherMachine(RuleBasedStateMachine):
    @initialize(
        concurrency=st.integers(1, 2),
        max_tokens=st.integers(4, 8),
        delay_s=st.sampled_from([0.0, 0.5]),
        small_tokens=st.sampled_from([0, 0, 3]),
        ends=st.sampled_from(["", "", "drain", "death"]),
    )
    def begin(
        self, concurrency: int, max_tokens: int, delay_s: float, small_tokens: int, ends: str
    ) -> None:
        self.loop = VirtualTimeLoop()
        self.events: list[Callable[[], None]] = []
        # After these little of interest happens, so that most runs go without.
        self.ends = ends

        async def make() -> WatchedHarness:
            return WatchedHarness(
                concurrency=concurrency,
                max_tokens=max_tokens,
                delay_s=delay_s,
                small_tokens=small_tokens,
            )

        self.harness = self.loop.run_until_complete(make())

    @rule(
        tokens=st.integers(0, 4),
        layer=st.sampled_from([0, 0, 1]),
        deadline_s=st.sampled_from([None, None, 0.0, 0.3, 0.5, 2.0]),
    )
    def submit(self, tokens: int, layer: int, deadline_s: float | None) -> None:
        self.events.append(lambda: self._submit(tokens, layer, deadline_s))

    def _submit(self, tokens: int, layer: int, deadline_s: float | None) -> None:
        harness = self.harness
        try:
            request = harness.request(tokens, layer=layer, deadline_s=deadline_s)
        except QueueFull:
            assert harness.admission.tokens + tokens > MAX_QUEUE_TOKENS
            return
        ticket = Ticket(len(harness.tickets), request)
        harness.tickets[request] = ticket
        request.data[:] = ticket.content
        harness.batcher.submit(request)

    @rule(which=st.integers(0, 3), outcome=st.sampled_from(["ok", "ok", "fails"]))
    def end(self, which: int, outcome: str) -> None:
        self.events.append(lambda: self._end(which, outcome))

    @precondition(lambda self: self.ends == "death")
    @rule(which=st.integers(0, 3))
    def die(self, which: int) -> None:
        self.events.append(lambda: self._end(which, "dies"))

    def _end(self, which: int, outcome: str) -> None:
        running = self.harness.with_engine
        if not running:
            return
        batch = running.pop(which % len(running))
        for member in batch.members:
            ticket = self.harness.tickets[member]
            assert bytes(member.data) == ticket.content, "its slot was given to somebody else"
            ticket.last_failed_alone = outcome == "fails" and len(batch.members) == 1
        if outcome == "ok":
            batch.succeed()
        else:
            batch.end(RuntimeError("failed") if outcome == "fails" else EngineDead("poisoned"))

    @rule(which=st.integers(0, 30))
    def leave(self, which: int) -> None:
        self.events.append(lambda: self._leave(which))

    def _leave(self, which: int) -> None:
        tickets = list(self.harness.tickets.values())
        if tickets:
            # Mostly a young one, because most of the others have long been answered.
            ticket = tickets[-1 - which % len(tickets)]
            if not ticket.request.future.done():
                ticket.left_as = ticket.request.state
            self.harness.batcher.cancel(ticket.request)

    @precondition(lambda self: self.ends == "drain")
    @rule()
    def drain(self) -> None:
        self.events.append(self.harness.batcher.drain)

    @rule(seconds=st.sampled_from([0.1, 0.25, 0.5, 3.0]))
    def block(self, seconds: float) -> None:
        self.events.append(lambda: self.loop.block(seconds))

    @precondition(lambda self: self.events)
    @rule(seconds=st.sampled_from([0.0, 0.0, 0.1, 0.25, 0.5, 2.0]))
    def flush(self, seconds: float) -> None:
        events, self.events = self.events, []

        async def happen() -> None:
            for event in events:
                event()
            await settle()
            self.harness.check()
            self.loop.block(seconds)
            await settle()
            self.harness.check()

        self.loop.run_until_complete(happen())
        self.loop.raise_errors()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.events.append(self.harness.batcher.drain)
            self.flush(0.0)
            while self.harness.with_engine:
                self.events.append(lambda: self._end(0, "ok"))
                self.flush(0.0)
            assert self.harness.queued == (0, 0, 0)
            for ticket in self.harness.tickets.values():
                self._check_end(ticket)
            batcher = self.harness.batcher
            assert not [*batcher._groups, *batcher._running, *batcher._retries], "memory leaks"
        finally:
            self.loop.finish()
        self.loop.raise_errors()

    def _check_end(self, ticket: Ticket) -> None:
        request = ticket.request
        assert not has_slot(request)
        found = request.future.exception() or request.future.result()
        if isinstance(found, Answer):
            if request.tokens:
                assert found.batch_tokens == sum(ticket.batches[-1].tokens)
            assert len(found.data) == request.output_nbytes
        elif isinstance(found, Cancelled):
            assert ticket.left_as is not None
            assert ticket.left_as is State.RUNNING or not ticket.batches
        elif isinstance(found, DeadlineExceeded):
            assert request.deadline is not None
            assert not ticket.batches
        elif isinstance(found, EngineDead):
            assert self.harness.deaths
        else:
            assert type(found) is EngineError
            assert ticket.last_failed_alone


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
