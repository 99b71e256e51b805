"""What one process counted; mergeable, so that several processes add up to one result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from service.load.faults import Fault
from service.load.histogram import LogHistogram


@dataclass(slots=True)
class Tally:
    """Counts of one load.

    Attributes:
        latency_ns: Right answers to requests due in the measured time, by rows of the request:
            from when it was due (open loop) or sent (closed loop) to the answer's last byte.
        wait_ns: Open loop, the same requests: from due to sent. Time spent in the client.
        batch_tokens: `X-MLP-Batch-Tokens` of the right answers of the measured time.
        kernels: `X-MLP-Kernel` of the same.
        server_timing: Sum in milliseconds and count per metric of their `Server-Timing`.
        requests: Right answers that arrived in the measured time.
        tokens: Rows in them.
        sent_bytes: Body bytes of their requests.
        received_bytes: Body bytes of them.
        sent: Requests sent, the warm-up's included, as in all that follows.
        statuses: Answers by status, with the error's code for those that are not 200.
        faults: Everything else that went wrong.
        examples: The first message per status or fault.
        compared_fully: Answers of which every element was compared.
        compared_in_part: Answers of which some rows were.
        most_backlog: Open loop: most requests that waited for a connection at once.
        cpu_shares: CPU seconds per second of the measured time, one per process.
    """

    latency_ns: dict[int, LogHistogram] = field(default_factory=dict)
    wait_ns: LogHistogram = field(default_factory=LogHistogram)
    batch_tokens: LogHistogram = field(default_factory=LogHistogram)
    kernels: Counter[str] = field(default_factory=Counter)
    server_timing: dict[str, tuple[float, int]] = field(default_factory=dict)
    requests: int = 0
    tokens: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    compared_fully: int = 0
    compared_in_part: int = 0
    most_backlog: int = 0
    cpu_shares: tuple[float, ...] = ()

    @property
    def wrong_answers(self) -> int:
        """Answers with status 200 that were not right."""
        return sum(count for fault, count in self.faults.items() if fault.is_wrong_answer)

    @property
    def errors(self) -> int:
        """Everything that was not a right answer."""
        rejected = sum(count for status, count in self.statuses.items() if status != "200")
        return rejected + sum(self.faults.values())

    def latency(self) -> LogHistogram:
        """Latencies of all row counts together."""
        everything = LogHistogram()
        for histogram in self.latency_ns.values():
            everything.merge(histogram)
        return everything

    def note_fault(self, fault: Fault, message: str) -> None:
        """Count something that went wrong."""
        self.faults[fault] += 1
        self.examples.setdefault(fault.value, message)

    def note_status(self, status: str, message: str) -> None:
        """Count an error status."""
        self.statuses[status] += 1
        self.examples.setdefault(status, message)

    def note_timing(self, name: str, milliseconds: float) -> None:
        """Count one metric of a `Server-Timing` header."""
        total, count = self.server_timing.get(name, (0.0, 0))
        self.server_timing[name] = (total + milliseconds, count + 1)

    def merge(self, other: Tally) -> None:
        """Add what another process counted."""
        for rows, histogram in other.latency_ns.items():
            self.latency_ns.setdefault(rows, LogHistogram()).merge(histogram)
        self.wait_ns.merge(other.wait_ns)
        self.batch_tokens.merge(other.batch_tokens)
        self.kernels.update(other.kernels)
        for name, (total, count) in other.server_timing.items():
            mine, seen = self.server_timing.get(name, (0.0, 0))
            self.server_timing[name] = (mine + total, seen + count)
        self.requests += other.requests
        self.tokens += other.tokens
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        self.sent += other.sent
        self.statuses.update(other.statuses)
        self.faults.update(other.faults)
        self.examples = {**other.examples, **self.examples}
        self.compared_fully += other.compared_fully
        self.compared_in_part += other.compared_in_part
        self.most_backlog += other.most_backlog
        self.cpu_shares += other.cpu_shares
