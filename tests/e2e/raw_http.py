"""HTTP over a bare socket: requests no library would send, and answers as they came."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RawAnswer:
    """Status, headers by lower-case name, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Closed(Exception):
    """The server closed the connection before the answer was complete."""


class RawConnection:
    """One connection; bytes out as given, answers in one by one."""

    def __init__(
        self, url: str, timeout_s: float = 30.0, receive_buffer: int | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect((parts.hostname, parts.port))
        except OSError:
            self.socket.close()
            raise
        self._pending = bytearray()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> RawAnswer:
        """The next answer, also an interim one (1xx)."""
        head = self._take_until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head.split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        status = int(status_line.split()[1])
        length = int(headers.get("content-length", 0)) if status >= 200 else 0
        return RawAnswer(status, headers, self._take(length))

    def is_closed(self) -> bool:
        """Whether the server has ended the connection; waits for it until the timeout."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def _take_until(self, mark: bytes) -> bytes:
        while (end := self._pending.find(mark)) < 0:
            self._fill()
        found = bytes(self._pending[:end])
        del self._pending[: end + len(mark)]
        return found

    def _take(self, length: int) -> bytes:
        while len(self._pending) < length:
            self._fill()
        found = bytes(self._pending[:length])
        del self._pending[:length]
        return found

    def _fill(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(f"after {bytes(self._pending[:200])!r}")
        self._pending += data


def head(path: str, *, length: int | None = None, method: str = "POST", **headers: object) -> bytes:
    """Request line and headers; underscores in names stand for hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunked(body: bytes, size: int = 1000) -> bytes:
    """A body in chunks, as clients send it that do not know its length."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
