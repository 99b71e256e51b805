"""A server that is hardly one: blocking sockets and a thread for each connection.

No Python server moves bodies with less work, so it shows what a machine's loopback interface and
the benchmark's clients can do at most.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import signal
import socket
import sys
import threading

logger = logging.getLogger(__name__)

_BACKLOG = 512
_HEAD_ROOM = 4096
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def serve_floor(port: int, processes: int) -> None:
    """Answer every body with itself until SIGTERM.

    Args:
        port: On the loopback interface; 0 picks a free one, which is logged.
        processes: That accept connections.
    """
    with socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as listener:
        logger.info("running on http://127.0.0.1:%d", listener.getsockname()[1])
        fork = multiprocessing.get_context("fork")
        for _ in range(processes):
            fork.Process(target=_accept, args=(listener,), daemon=True).start()
        # Leaves by way of the exit handlers, which end the processes.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            signal.pause()


def _accept(listener: socket.socket) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    """Requests of one connection, all of the first one's length."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room = memoryview(bytearray(_HEAD_ROOM))
    message = memoryview(b"")
    with connection:
        while received := connection.recv_into(message or room):
            if not message:
                head, message = _make_room(bytes(room[:received]))
                message[:received] = room[:received]
            while received < len(message):
                got = connection.recv_into(message[received:])
                if not got:
                    return
                received += got
            answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(message) - head)
            sent = connection.sendmsg((answer, message[head:])) - len(answer)
            connection.sendall(message[head + sent :])


def _make_room(begin: bytes) -> tuple[int, memoryview]:
    """Length of a request's head, which came whole, and memory for head and body."""
    head, _, _ = begin.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    assert found is not None
    size = len(head) + 4
    return size, memoryview(bytearray(size + int(found.group(1))))
