"""Small requests that have come whole, past ASGI: one call takes the request, one the answer.

uvicorn makes a cycle, a task, an event and messages for each request; for rows of a few KiB that
costs as much as all the rest. Here a POST with a short body is held back until its end, and if the
application takes it then, none of that is made. What it does not take, whatever the reason, and
what does not end soon, goes the usual way as if it had never been held back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.http_direct import DirectHttpProtocol

# Of a body. Larger ones seldom come in one piece, and moving them is what costs.
SMALL_BYTES = 256 << 10
_DIGITS = len(str(SMALL_BYTES))
# Of an answer. What is copied behind its headers leaves by the cheaper call.
_JOINED_BYTES = 16 << 10
# In which a head has to end that may be learned.
_HEAD_BYTES = 2 << 10
_OK = 200

# Many clients send headers and body apart. Who lets the rest wait longer than that is seen to
# without it.
_HOLD_S = 0.005

# Status, headers and body.
SendAnswer: TypeAlias = Callable[
    [int, Sequence[tuple[bytes, bytes]], Sequence[bytes | bytearray | memoryview]], None
]


class TakesSmall(Protocol):
    """The application's side."""

    def __call__(
        self, target: bytes, headers: dict[bytes, bytes], body: bytes, answer: SendAnswer
    ) -> Callable[[], None] | None:
        """Begin with a request.

        Args:
            target: Path and query.
            headers: By lower-case name; of several, the last.
            body: All of it.
            answer: To be called once, later, also where the client has left.

        Returns:
            What to call when the client leaves before its answer; None where the request is not
            taken, and then has had no effect.
        """


class TakesConnections(Protocol):
    """Who serves connections whose requests repeat themselves."""

    def wants(self, head: bytes, target: bytes, headers: dict[bytes, bytes]) -> bool:
        """Whether a connection may move whose last request, which was served, had this head.

        Args:
            head: As it came, with the empty line.
            target: As to TakesSmall, like the next.
            headers: Of the request.
        """

    def adopt(self, descriptor: int) -> bool:
        """Take a connection; if not, the descriptor stays the caller's."""


class SmallHttpProtocol(DirectHttpProtocol):
    """HTTP on a connection, with a short way for small requests.

    The application offers it as its attribute `takes_small`.

    Attributes:
        lane: Where connections move to; None for nowhere.
        has_moved: It is somebody else's, and lost here alone.
    """

    lane: TakesConnections | None = None
    has_moved = False
    # What was read at once, while it may begin with a request; the head of the one at hand.
    _piece: bytes | memoryview | None = None
    _raw_head = b""

    # Of the request that is held back: its headers, and what has come of its body.
    _held_headers: dict[bytes, bytes]
    _held: list[bytes] | None = None
    _held_timer: asyncio.TimerHandle | None = None
    # The one that was taken and is not answered yet.
    _taken: SmallCycle | None = None
    # Closes the connection when it has been idle for long enough. It runs on over many requests:
    # to start it anew for each costs as much as to parse it.
    _idle_timer: asyncio.TimerHandle | None = None
    _answered_s = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as in uvicorn
        super().__init__(*args, **kwargs)
        self._takes_small: TakesSmall | None = getattr(self.app, "takes_small", None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._held is not None:
            # It was a request, and is counted as one whose client has left.
            self._let_go_or_refuse()
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.disconnected = True
            taken.left()

    def shutdown(self) -> None:
        """Close the connection, behind the request that may be under way."""
        if self._held is not None:
            self._let_go_or_refuse()
        super().shutdown()

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse; a request that is not complete then is held back for a moment only."""
        if self.lane is not None and self._is_between_requests():
            self._piece = data
        super().data_received(data)
        self._piece = None
        if self._held is not None and self._held_timer is None:
            self._held_timer = self.loop.call_later(_HOLD_S, self._let_go_or_refuse)

    def on_headers_complete(self) -> None:
        """All headers are there: the request begins."""
        if self._is_small():
            self._raw_head = self._find_head()
            self.reader.read_wide()
            self._held = []
            self.headers_came()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        if self._held is None:
            super().on_body(body)
        else:
            self._held.append(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        if self._held is not None:
            if self._was_taken(b"".join(self._held)):
                self._hold_no_more()
                return
            self._let_go()
        super().on_message_complete()

    def _is_small(self) -> bool:
        if self._takes_small is None or not self.is_idle:
            return False
        headers = self._held_headers = dict(self.headers)
        length, parser = headers.get(b"content-length", b""), self.parser
        return (
            0 < len(length) <= _DIGITS
            and length.isdigit()
            and int(length) <= SMALL_BYTES
            and b"transfer-encoding" not in headers
            and not self.expect_100_continue
            and not self.flow.write_paused
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    def _is_between_requests(self) -> bool:
        """Whether the next byte begins a request, or is in vain."""
        if self._in_headers or self._held is not None or self.reads_ahead:
            return False
        return self.cycle is None or not self.cycle.more_body

    def _find_head(self) -> bytes:
        """The request at hand up to its body, as it came; empty where that cannot be told."""
        piece, self._piece = self._piece, None
        if piece is None:
            return b""
        begun = bytes(piece[:_HEAD_BYTES])
        head = begun[: begun.find(b"\r\n\r\n") + 4]
        lines = len(self.headers) + 2
        # Of what only the parser takes for line ends, nothing is known here.
        if head.startswith(b"POST ") and head.count(b"\r\n") == head.count(b"\n") == lines:
            return head
        return b""

    def _move(self, headers: dict[bytes, bytes]) -> None:
        """Leave the connection to the lane, if that wants it and nothing is under way here."""
        head, lane, transport = self._raw_head, self.lane, self.transport
        if lane is None or not head or not self._is_between_requests():
            return
        if self._refused or self.flow.read_paused or transport.get_write_buffer_size():
            return
        if transport.is_closing() or not lane.wants(head, self.url, headers):
            return
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:
            # There are no more to be had; it stays.
            return
        if lane.adopt(descriptor):
            self.has_moved = True
            transport.abort()
        else:
            os.close(descriptor)

    def _was_taken(self, body: bytes) -> bool:
        assert self._takes_small is not None
        cycle = SmallCycle(self)
        left = self._takes_small(self.url, self._held_headers, body, cycle.answer)
        if left is None:
            return False
        cycle.left = left
        self._taken = cycle
        self.cycle = cycle  # type: ignore[assignment]
        return True

    def _hold_no_more(self) -> list[bytes]:
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        held, self._held = self._held, None
        assert held is not None
        return held

    def answered(self, *, served: bool) -> None:
        """The request that was taken has its answer."""
        self._taken = None
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._answered_s = self.loop.time()
        if self._idle_timer is None:
            self._close_when_idle(self.timeout_keep_alive)
        if served and self._raw_head:
            self._move(self._held_headers)

    def _close_when_idle(self, seconds: float) -> None:
        self._idle_timer = self.loop.call_later(seconds, self._is_idle)

    def _is_idle(self) -> None:
        self._idle_timer = None
        if self._timer is not None:
            # The last request went the usual way, or headers are on their way.
            return
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if self._held is not None or not self.cycle.response_complete:
            left_s = self.timeout_keep_alive
        if left_s > 0:
            self._close_when_idle(left_s)
        else:
            self.timeout_keep_alive_handler()

    def _let_go_or_refuse(self) -> None:
        """Let go where no parser is around, which refuses a URL that the usual way cannot read."""
        try:
            self._let_go()
        except Exception:  # noqa: BLE001 - the parser refuses for whatever fails, too
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)

    def _let_go(self) -> None:
        """The request at hand goes the usual way, unless it was refused meanwhile."""
        held = self._hold_no_more()
        if self._refused:
            return
        super().on_headers_complete()
        for part in held:
            super().on_body(part)


class SmallCycle:
    """What uvicorn's protocol has to know of the request at hand, instead of its own cycle.

    Attributes:
        left: Called when the client has left.
    """

    __slots__ = ("_protocol", "disconnected", "keep_alive", "left", "response_complete")

    scope = None
    # It came whole.
    more_body = False
    # Told when the client leaves; nobody waits for it here.
    message_event = asyncio.Event()
    left: Callable[[], None]

    def __init__(self, protocol: SmallHttpProtocol) -> None:
        self._protocol = protocol
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    def answer(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        chunks: Sequence[bytes | bytearray | memoryview],
    ) -> None:
        """Send the answer in one piece."""
        if self.disconnected:
            return
        protocol = self._protocol
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        lines = [
            name + b": " + value
            for name, value in (*protocol.server_state.default_headers, *headers)
        ]
        nbytes = sum(map(len, chunks))
        length = b"content-length: %d\r\n\r\n" % nbytes
        pieces = [STATUS_LINE[status] + b"\r\n".join([*lines, length]), *chunks]
        if nbytes > _JOINED_BYTES:
            protocol.transport.writelines(pieces)
        else:
            protocol.transport.write(b"".join(pieces))
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.answered(served=status == _OK)
