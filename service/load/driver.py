"""All connections of one process: what the closed and the open loop have in common."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

from service.errors import StartError
from service.load.answers import AnswerChecker
from service.load.client import Connection, connect
from service.load.faults import Fault
from service.load.headers import describe_error, parse_server_timing, retry_after_s
from service.load.histogram import LogHistogram
from service.load.payloads import Payload, make_mix
from service.load.plan import Plan
from service.load.reader import Answer
from service.load.tally import Tally
from service.load.transport import TensorTransport

_NS = 1_000_000_000
# How late a timeout may be noticed, and how long after its last answer a load may end.
_TICK_S = 0.02
REPORT_INTERVAL_S = 0.5
_FIRST_RECONNECT_S = 0.05
_LAST_RECONNECT_S = 1.0
# Connections made at a time at the start: more may overflow a listen backlog of 128.
_CONNECT_AT_ONCE = 64

OnReport = Callable[[Tally], None]


@dataclass(slots=True)  # not frozen: one per request, and that would double its cost
class _Sent:
    """A request in flight; due and sent in `time.monotonic_ns()`."""

    payload: Payload
    due_ns: int
    sent_ns: int


class Driver(ABC):
    """Keeps connections, sends what the loop decides, judges and counts what comes back."""

    def __init__(self, plan: Plan, transport: TensorTransport) -> None:
        self.plan = plan
        self._tensors = transport
        self.tally = Tally()
        self.measure_ns = 0
        self.end_ns = 0
        mix_seed = plan.seed[0] * 1_000_003 + plan.seed[1]
        self.mix = cycle(make_mix(plan.payloads, plan.options.rows, mix_seed))
        self._checker = AnswerChecker(plan.expected, plan.options.dtype)
        self.connections: set[Connection] = set()
        # In the order of sending, so that the first is the first to time out.
        self._in_flight: dict[Connection, _Sent] = {}
        self._reconnecting: set[asyncio.Task[None]] = set()

    @abstractmethod
    def begin(self) -> None:
        """Start: every connection is open and idle."""

    @abstractmethod
    def free(self, connection: Connection, pause_s: float) -> None:
        """A connection has nothing in flight; the service asked for a pause, or pause_s is 0."""

    @abstractmethod
    def wants_connections(self) -> bool:
        """Whether there will be anything more to send."""

    @abstractmethod
    def give_up(self) -> None:
        """Count what was due and not sent, and forget it."""

    async def open_connections(self) -> None:
        """Connect, before anything is sent.

        Raises:
            StartError: not all connections can be made.
        """
        options = self.plan.options
        for first in range(0, self.plan.connections, _CONNECT_AT_ONCE):
            count = min(_CONNECT_AT_ONCE, self.plan.connections - first)
            made = [connect(self, options.address, options.timeout_s) for _ in range(count)]
            results = await asyncio.gather(*made, return_exceptions=True)
            self.connections.update(item for item in results if isinstance(item, Connection))
            for error in results:
                if isinstance(error, BaseException):
                    raise self._cannot_connect(error) from None

    async def run(self, on_report: OnReport | None) -> None:
        """Run the load: warm up, measure, wait for what is still under way."""
        options = self.plan.options
        now = time.monotonic_ns()
        self.measure_ns = now + int(options.warm_up_s * _NS)
        self.end_ns = self.measure_ns + int(options.duration_s * _NS)
        self.begin()
        await self._run_until(self.measure_ns, on_report)
        started, cpu_started = time.monotonic(), time.process_time()
        await self._run_until(self.end_ns, on_report)
        cpu_s = time.process_time() - cpu_started
        self.tally.cpu_shares = (cpu_s / (time.monotonic() - started),)
        give_up_ns = self.end_ns + int(options.timeout_s * _NS)
        while self._in_flight or self.wants_connections():
            if time.monotonic_ns() > give_up_ns:
                self.give_up()
            await asyncio.sleep(_TICK_S)
            self._expire()

    async def close(self) -> None:
        """Close all connections, whatever they are at."""
        self.end_ns = 0
        self.give_up()
        # Before the connections, since asyncio.wait_for may return one although it was cancelled.
        for task in self._reconnecting:
            task.cancel()
        await asyncio.gather(*self._reconnecting, return_exceptions=True)
        for connection in self.connections:
            connection.abort()

    def send(self, connection: Connection, payload: Payload, due_ns: int) -> None:
        """Send a request that was due at that time."""
        self._in_flight[connection] = _Sent(payload, due_ns, time.monotonic_ns())
        self.tally.sent += 1
        connection.send(self._tensors.outgoing(connection, payload))

    # What follows is called by connections.

    def answered(self, connection: Connection, answer: Answer) -> None:
        """Judge an answer and go on."""
        sent = self._in_flight.pop(connection)
        if answer.status == 200:
            answer = self._tensors.incoming(connection, answer)
        self._judge(sent, answer)
        self._tensors.ended(connection)
        pause_s = 0.0 if answer.status == 200 else retry_after_s(answer)
        if connection.is_open:
            self.free(connection, pause_s)
        else:
            self._replace(connection, pause_s)

    def failed(self, connection: Connection, fault: Fault, message: str) -> None:
        """Count what went wrong."""
        self._in_flight.pop(connection, None)
        self._tensors.ended(connection)
        self.tally.note_fault(fault, message)
        self._replace(connection)

    def lost(self, connection: Connection) -> None:
        """Replace a connection that was closed while idle, which a server may do at any time."""
        self._replace(connection)

    def _judge(self, sent: _Sent, answer: Answer) -> None:
        tally = self.tally
        if answer.status != 200:
            tally.note_status(*describe_error(answer))
            return
        tally.statuses["200"] += 1
        verdict = self._checker.check(sent.payload, answer)
        if verdict.fault is not None:
            tally.note_fault(verdict.fault, verdict.message)
            return
        if verdict.is_full:
            tally.compared_fully += 1
        else:
            tally.compared_in_part += 1
        if self.measure_ns <= sent.due_ns < self.end_ns:
            rows = sent.payload.rows
            if rows not in tally.latency_ns:  # setdefault would make 38 KB for every request
                tally.latency_ns[rows] = LogHistogram()
            tally.latency_ns[rows].record(answer.at_ns - sent.due_ns)
            if self.plan.rate_per_s is not None:
                tally.wait_ns.record(sent.sent_ns - sent.due_ns)
        if self.measure_ns <= answer.at_ns < self.end_ns:
            self._count(sent.payload, answer)

    def _count(self, payload: Payload, answer: Answer) -> None:
        tally, headers = self.tally, answer.headers
        tally.requests += 1
        tally.tokens += payload.rows
        tally.sent_bytes += payload.body_bytes
        tally.received_bytes += len(answer.body)
        kernel = headers.get(b"x-mlp-kernel")
        if kernel is not None:
            tally.kernels[kernel.decode("latin-1")] += 1
        batch_tokens = headers.get(b"x-mlp-batch-tokens", b"")
        if batch_tokens.isdigit():
            tally.batch_tokens.record(int(batch_tokens))
        timing = headers.get(b"server-timing")
        if timing is not None:
            for name, milliseconds in parse_server_timing(timing):
                tally.note_timing(name, milliseconds)

    def _expire(self) -> None:
        oldest_ns = time.monotonic_ns() - int(self.plan.options.timeout_s * _NS)
        for connection, sent in list(self._in_flight.items()):
            if sent.sent_ns > oldest_ns:
                break
            connection.abort()
            message = f"no whole answer within {self.plan.options.timeout_s:g} s"
            self.failed(connection, Fault.TIMEOUT, message)

    def _replace(self, connection: Connection, pause_s: float = 0.0) -> None:
        self.connections.discard(connection)
        task = asyncio.get_running_loop().create_task(self._reconnect(pause_s))
        self._reconnecting.add(task)
        task.add_done_callback(self._reconnecting.discard)

    async def _reconnect(self, pause_s: float) -> None:
        delay_s = _FIRST_RECONNECT_S
        await asyncio.sleep(pause_s)
        while self.wants_connections():
            connection = await self._try_to_connect()
            if connection is not None:
                self.connections.add(connection)
                self.free(connection, 0.0)
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_RECONNECT_S)

    def _cannot_connect(self, error: BaseException) -> BaseException:
        if not isinstance(error, (OSError, asyncio.TimeoutError)):
            return error
        options = self.plan.options
        reason = str(error) or f"no answer within {options.timeout_s:g} s"
        return StartError(
            f"connections: {self.plan.connections} to {options.address.authority} cannot be made: "
            f"{reason}"
        )

    async def _try_to_connect(self) -> Connection | None:
        options = self.plan.options
        try:
            return await connect(self, options.address, options.timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer within {options.timeout_s:g} s"
            self.tally.note_fault(Fault.CONNECT, reason)
            return None

    async def _run_until(self, at_ns: int, on_report: OnReport | None) -> None:
        next_report_s = time.monotonic()
        while (left_ns := at_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(min(_TICK_S, left_ns / _NS))
            self._expire()
            if on_report is not None and time.monotonic() >= next_report_s:
                next_report_s += REPORT_INTERVAL_S
                on_report(self.tally)
