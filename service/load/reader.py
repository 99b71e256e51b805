"""From received bytes to one HTTP/1.1 answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic_ns

import httptools

# Heads and small answers arrive here; one read takes what the socket holds, up to this.
_SCRATCH_BYTES = 64 << 10
# Against a Content-Length that would exhaust memory. A 64 MiB request has an answer of about
# 350 MiB at most (the gated output of the widest models).
_MAX_BODY_BYTES = 1 << 30


@dataclass(slots=True)  # not frozen: one per request, and that would double its cost
class Answer:
    """A whole response.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        body: Valid until the connection sends its next request.
        keep_alive: Whether the connection can be used again.
        at_ns: `time.monotonic_ns()` when its last byte had been read.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: memoryview
    keep_alive: bool
    at_ns: int


class AnswerReader:
    """Assembles answers, one after the other.

    The rest of a large body is received straight into its place: the parser sees the head and what
    came along with it, and not the megabytes after that.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._body = bytearray()
        self._tail: memoryview | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.expect()

    def expect(self) -> None:
        """Start on the next answer."""
        self._headers: dict[bytes, bytes] = {}
        self._status = 0
        self._keep_alive = False
        self._length = -1
        self._received = 0
        self._in_body = False
        self._whole = False
        self._surplus = False
        if self._tail is not None:
            # The parser did not see the end of a body that was received past it.
            self._tail = None
            self._parser = httptools.HttpResponseParser(self)

    def buffer(self) -> memoryview:
        """Where the next bytes have to go; never empty."""
        return self._scratch if self._tail is None else self._tail

    def received(self, count: int) -> Answer | None:
        """Take in `count` bytes that were put into `buffer()`; returns the answer once whole.

        Raises:
            httptools.HttpParserError: this is not one answer in HTTP/1.1.
        """
        if self._tail is None:
            self._parser.feed_data(self._scratch[:count])
            if self._surplus:
                raise httptools.HttpParserError("more than one answer to one request")
            if self._in_body and not self._whole and self._length > 0:
                self._tail = memoryview(self._body)[self._received : self._length]
        else:
            self._received += count
            self._tail = self._tail[count:]
            self._whole = not self._tail
        if not self._whole:
            return None
        body = memoryview(self._body)[: self._received]
        return Answer(self._status, self._headers, body, self._keep_alive, monotonic_ns())

    def progress(self) -> str:
        """How far the answer has come, for people."""
        if not self._in_body:
            return "no head"
        known = f" of {self._length}" if self._length >= 0 else ""
        return f"{self._received}{known} body bytes"

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        """Note a second answer in the same bytes."""
        self._surplus = self._whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Make room for the body."""
        self._in_body = True
        self._status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()
        self._length = int(self._headers.get(b"content-length", b"-1"))
        if self._length > _MAX_BODY_BYTES:
            raise ValueError(f"Content-Length {self._length}")
        if len(self._body) < self._length:
            # Not resized: an answer given out before may still be looking at it.
            self._body = bytearray(self._length)

    def on_body(self, chunk: bytes) -> None:
        """Put a piece of the body into its place."""
        end = self._received + len(chunk)
        if end > len(self._body):  # chunked: the length was not known in advance
            self._body = self._body[: self._received] + chunk
        else:
            self._body[self._received : end] = chunk
        self._received = end

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        self._whole = True
