"""Closed-loop clients with the least work per request, the same for all servers.

    python -m service.bench.clients PORT BODY_BYTES CLIENTS REQUESTS

is one process of them: it says `ready`, waits for a line, and prints a `Round` as JSON.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

# Answers are read into one buffer of a process's clients, and dropped: what they do with them is no
# part of any server's work, and shares the cores with it.
_READ_BYTES = 512 << 10
_HEAD_BYTES = 4096


@dataclass(slots=True)
class Round:
    """What one round of requests showed.

    Attributes:
        elapsed_s: Of the process that took longest.
        latencies_s: One per request answered with 200 and a body as long as the request's.
        errors: Requests that were answered otherwise, or not.
        cpu_s: Processor time of the clients.
    """

    elapsed_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0
    cpu_s: float = 0.0


def run_round(port: int, body: bytes, clients: int, requests: int) -> Round:
    """Send `requests` in all from `clients` connections, each as fast as it is answered.

    Args:
        port: On the loopback interface.
        body: Of every request; the answer must be as long.
        clients: Connections, which share the requests evenly.
        requests: Of all connections together.
    """
    result = Round()
    message = _message(body)
    room = memoryview(bytearray(_READ_BYTES))
    clock = time.process_time()
    poll = select.epoll()
    with ExitStack() as stack:
        stack.callback(poll.close)
        working: dict[int, _Client] = {}
        for _ in range(clients):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client = _Client(connection, message, len(body), room, requests // clients, result)
            working[connection.fileno()] = client
            poll.register(connection, select.EPOLLIN)
        began = time.perf_counter()
        for number, client in working.items():
            client.begin()
            poll.modify(number, client.waits_for)
        while working:
            for number, _ in poll.poll():
                client = working[number]
                before = client.waits_for
                client.go_on()
                if client.requests == 0:
                    poll.unregister(number)
                    del working[number]
                elif client.waits_for != before:
                    poll.modify(number, client.waits_for)
        result.elapsed_s = time.perf_counter() - began
    result.cpu_s = time.process_time() - clock
    return result


def _message(body: bytes) -> memoryview:
    head = (
        "POST /mlp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return memoryview(head.encode() + body)


def run_processes(port: int, body_bytes: int, clients: int, requests: int, count: int) -> Round:
    """The same, shared by `count` processes, with random bodies.

    Raises:
        RuntimeError: a process failed; what it said is above.
    """
    share = [str(port), str(body_bytes), str(clients // count), str(requests // count)]
    command = [sys.executable, "-m", __spec__.name, *share]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(count)
        ]
        for process in running:
            _read(process)
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        rounds = [Round(**json.loads(_read(process))) for process in running]
    return Round(
        elapsed_s=max(one.elapsed_s for one in rounds),
        latencies_s=[latency for one in rounds for latency in one.latencies_s],
        errors=sum(one.errors for one in rounds),
        cpu_s=sum(one.cpu_s for one in rounds),
    )


class _Client:
    """One connection with one request in flight.

    Attributes:
        requests: Left to send or to be answered.
        waits_for: What to poll the connection for.
    """

    __slots__ = (
        "_began",
        "_body_bytes",
        "_connection",
        "_message",
        "_needed",
        "_received",
        "_result",
        "_room",
        "_sent",
        "requests",
        "waits_for",
    )

    def __init__(  # noqa: PLR0917 - the connection, and what it shares with others
        self,
        connection: socket.socket,
        message: memoryview,
        body_bytes: int,
        room: memoryview,
        requests: int,
        result: Round,
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._connection = connection
        self._message = message
        self._body_bytes = body_bytes
        self._room = room
        self._result = result
        self.requests = requests
        self.waits_for = select.EPOLLIN

    def begin(self) -> None:
        """Send the next request, as far as the kernel takes it."""
        self._sent = self._received = 0
        self._needed = sys.maxsize
        self._began = time.perf_counter()
        self._send()

    def go_on(self) -> None:
        """The connection has room, or bytes of the answer, or is broken."""
        try:
            if self.waits_for == select.EPOLLOUT:
                self._send()
                return
            got = self._connection.recv_into(self._room)
        except ConnectionError:
            got = 0
        first = self._received == 0
        self._received += got
        if first and got:
            self._read_head(got)
        if got == 0 or self._received >= self._needed:
            self._end(right=self._received == self._needed)

    def _send(self) -> None:
        self._sent += self._connection.send(self._message[self._sent :])
        everything = self._sent == len(self._message)
        self.waits_for = select.EPOLLIN if everything else select.EPOLLOUT

    def _read_head(self, got: int) -> None:
        # A head arrives in one piece here: it is shorter than a segment of the loopback interface.
        head, found, _ = bytes(self._room[: min(got, _HEAD_BYTES)]).partition(b"\r\n\r\n")
        if found and head.startswith(b"HTTP/1.1 200"):
            self._needed = len(head) + 4 + self._body_bytes
        else:
            self._needed = 0

    def _end(self, *, right: bool) -> None:
        if right:
            self._result.latencies_s.append(time.perf_counter() - self._began)
            self.requests -= 1
        else:
            # What else it sends belongs to nothing that was asked.
            self._result.errors += self.requests
            self.requests = 0
        if self.requests:
            self.begin()


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"clients: a process must answer, ended with {process.wait()}")
    return line


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(port: int, body_bytes: int, clients: int, requests: int) -> None:
    """One process of clients."""
    body = os.urandom(body_bytes)
    _say("ready")
    sys.stdin.readline()
    _say(json.dumps(asdict(run_round(port, body, clients, requests))))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
