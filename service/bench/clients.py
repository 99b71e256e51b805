"""Closed-loop clients on blocking sockets: the least work per request, the same for all servers."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field

_HEADER_ROOM = 4096


@dataclass(slots=True)
class Round:
    """What one round of requests showed.

    Attributes:
        latencies_s: One per request answered with 200 and a body as long as the request's.
        errors: Requests that were answered otherwise, or not.
    """

    elapsed_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0


def run_round(port: int, body: bytes, clients: int, requests: int) -> Round:
    """Send `requests` in all from `clients` connections, each as fast as it is answered."""
    result = Round()
    threads = [
        threading.Thread(target=_client, args=(port, body, requests // clients, result))
        for _ in range(clients)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.elapsed_s = time.perf_counter() - began
    return result


def _client(port: int, body: bytes, requests: int, result: Round) -> None:
    message = (
        b"POST /mlp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body
    received = memoryview(bytearray(len(body) + _HEADER_ROOM))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(requests):
            began = time.perf_counter()
            connection.sendall(message)
            if _receive(connection, received, len(body)):
                result.latencies_s.append(time.perf_counter() - began)
            else:
                result.errors += 1


def _receive(connection: socket.socket, buffer: memoryview, body_bytes: int) -> bool:
    """Read one answer; True for a 200 with a body of that length."""
    size, needed = 0, -1
    while needed < 0 or size < needed:
        got = connection.recv_into(buffer[size:])
        if not got:
            return False
        size += got
        if needed < 0:
            head, found, _ = bytes(buffer[: min(size, _HEADER_ROOM)]).partition(b"\r\n\r\n")
            if found:
                needed = len(head) + 4 + body_bytes
                if not head.startswith(b"HTTP/1.1 200"):
                    return False
    return size == needed
