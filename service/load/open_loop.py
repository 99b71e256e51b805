"""Open loop: requests are due at random times, whatever became of those before."""

from __future__ import annotations

import time
from collections import deque

from service.load.alarm import Alarm
from service.load.client import Connection
from service.load.driver import Driver
from service.load.faults import Fault
from service.load.payloads import Payload
from service.load.plan import Plan, poisson_arrivals_ns
from service.load.transport import TensorTransport


class OpenLoop(Driver):
    """Poisson arrivals; a request that finds no idle connection waits in a bounded backlog.

    `Retry-After` is not honoured: independent users do not know of each other's rejections.
    """

    def __init__(self, plan: Plan, transport: TensorTransport) -> None:
        super().__init__(plan, transport)
        assert plan.rate_per_s is not None
        self._arrivals = poisson_arrivals_ns(plan.rate_per_s, plan.seed)
        self._idle: deque[Connection] = deque()
        self._backlog: deque[tuple[int, Payload]] = deque()
        self._alarm = Alarm(self._arrive)
        self._start_ns = 0
        self._next_ns = 0

    def begin(self) -> None:
        """Set the alarm for the first arrival."""
        self._idle.extend(self.connections)
        self._start_ns = time.monotonic_ns()
        self._next_ns = self._start_ns + next(self._arrivals)
        self._set_alarm()

    async def close(self) -> None:
        """Also let go of the alarm."""
        self._alarm.close()
        await super().close()

    def free(self, connection: Connection, pause_s: float) -> None:  # noqa: ARG002
        """Send what has waited longest, or be idle."""
        if self._backlog:
            due_ns, payload = self._backlog.popleft()
            self.send(connection, payload, due_ns)
        else:
            self._idle.append(connection)

    def wants_connections(self) -> bool:
        """Until everything that is due before the end was sent."""
        return bool(self._backlog) or self._next_ns < self.end_ns

    def give_up(self) -> None:
        """Count what waits in the backlog, and forget it."""
        while self._backlog:
            self._backlog.popleft()
            self._note_unsent("still waiting for a connection a timeout after the end")

    def _arrive(self) -> None:
        """Send everything that is due."""
        now = time.monotonic_ns()
        while self._next_ns <= min(now, self.end_ns - 1):
            self._dispatch(self._next_ns, next(self.mix))
            self._next_ns = self._start_ns + next(self._arrivals)
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._next_ns < self.end_ns:
            self._alarm.set(self._next_ns)

    def _dispatch(self, due_ns: int, payload: Payload) -> None:
        while self._idle:
            connection = self._idle.popleft()
            if connection.is_open:  # a server may close an idle one
                self.send(connection, payload, due_ns)
                return
        if len(self._backlog) >= self.plan.max_backlog_requests:
            self._note_unsent(f"{self.plan.max_backlog_requests} requests were waiting already")
            return
        self._backlog.append((due_ns, payload))
        self.tally.most_backlog = max(self.tally.most_backlog, len(self._backlog))

    def _note_unsent(self, why: str) -> None:
        self.tally.note_fault(Fault.BACKLOG, f"all connections busy and {why}")
