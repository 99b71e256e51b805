"""uvicorn's HTTP protocol, with bounds on what a client may do while no request is under way.

Its parser has none: one connection that sends a header of 64 MiB stalls the event loop for
seconds, and one that never finishes its headers is kept for ever. So is one that sends an empty
line behind an answer, and the rest of a refused body is read for as long as it comes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# As other servers allow; ours are a few hundred bytes. What arrives in one piece with the end of
# the headers is not counted.
MAX_HEADER_BYTES = 64 << 10
HEADER_TIMEOUT_S = 20.0
# Of a body whose request has its answer, and of all that frames it. Many clients read nothing
# before they have sent everything: closed earlier, they would see a reset instead of the answer.
MAX_REST_BYTES = 1 << 30
# For what a client still sends whose request is no HTTP that we speak; nothing of it is looked at.
LINGER_S = 1.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses headers that are too large, closes connections on which no request comes to an end.

    One timer runs whenever no request is under way: until the first, between two, within headers.
    No data stops or extends it but the beginning and the end of a request.
    """

    _in_headers = False
    _header_bytes = 0
    # A request has begun in the piece of data at hand.
    _begun = False
    _refused = False
    _refusal = b""
    # What may still come of the body of a request that is answered; 0 where nothing is to come.
    _rest_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    # The request that is under way; `cycle` is the last that was parsed.
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as in uvicorn
        """A client has connected; it may stay idle for as long as between two requests."""
        super().connection_made(transport)
        self._close_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_timer()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            # Which uvicorn tells only the last one.
            running.disconnected = True
            running.message_event.set()

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse; then look whether the headers are still not complete."""
        if self._refused:
            return
        self._begun = False
        super().data_received(data)  # type: ignore[arg-type]  # whose parser takes either
        if self._rest_bytes:
            self._rest_bytes -= len(data)
            if self._rest_bytes <= 0:
                self.transport.close()
        if self._refused or not self._in_headers:
            return
        if self._begun:
            # What came before the request, in the same piece, is not to be told from its headers.
            self._close_after(HEADER_TIMEOUT_S)
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(
                b"431 Request Header Fields Too Large",
                f"headers: must have at most {MAX_HEADER_BYTES} bytes, have more",
            )

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_headers = self._begun = True
        self._header_bytes = 0
        super().on_message_begin()

    def on_response_complete(self) -> None:
        """An answer has left: the refusal that waited behind it may follow."""
        if self.pipeline:
            self._running, _ = self.pipeline[-1]
        super().on_response_complete()
        if self._refusal and not self._answers_come_first():
            self._send_refusal()
        # Any data would stop it where uvicorn knows of it.
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        if idle is None:
            return
        if self._in_headers:
            # The next request has begun, and has a time of its own.
            idle.cancel()
            return
        self._timer = idle
        if self.cycle.more_body:
            self._rest_bytes = MAX_REST_BYTES

    def on_headers_complete(self) -> None:
        """All headers are there."""
        self.headers_came()
        upgrades = self.parser.should_upgrade()
        if upgrades and self._has_body():
            # The parser stops at the headers then, and the body would be lost or read as a request.
            self._refuse(
                b"400 Bad Request",
                "Upgrade: must not be asked for in a request with a body; only HTTP/1.1 is spoken",
            )
            return
        super().on_headers_complete()
        if upgrades:
            # As would be what comes behind it.
            self.cycle.keep_alive = False
        if not self.pipeline:
            self._running = self.cycle

    def headers_came(self) -> None:
        """Stop to wait for headers."""
        self._in_headers = False
        self._stop_timer()

    def on_body(self, body: bytes) -> None:
        """Part of a body, unless its request was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request, unless it was refused."""
        if not self._refused:
            super().on_message_complete()
        if self._rest_bytes:
            self._rest_bytes = 0
            self._close_after(self.timeout_keep_alive)

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets an error of the same form as everything else."""
        self._refuse(b"400 Bad Request", f"request: {msg}")

    def _refuse(self, status: bytes, message: str) -> None:
        if self._refused:
            return
        self._refused = True
        body = json.dumps({"error": message, "code": "invalid"}).encode()
        self._stop_timer()
        self._refusal = (
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (status, len(body), body)
        )
        if self._answers_come_first():
            self.flow.pause_reading()
        else:
            self._send_refusal()

    def _answers_come_first(self) -> bool:
        """Requests that came whole before what is refused still wait for their answers."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _send_refusal(self) -> None:
        refusal, self._refusal = self._refusal, b""
        if self.transport.is_closing():
            return
        self.transport.write(refusal)
        # Who is still sending would see a reset instead of the refusal, if it were not read.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._close_after(LINGER_S)

    def _close_after(self, seconds: float) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._time_is_over)

    def _time_is_over(self) -> None:
        if self.flow.read_paused and not self._refused:
            # What it waits for may be there, unread until requests before it have their answers.
            self._close_after(HEADER_TIMEOUT_S)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
