"""The way between a front end and the engine's process: a socket pair that keeps messages whole.

SOCK_SEQPACKET: the kernel wakes the other side, pushes back when it does not read, and says at once
when it has died. What is said within one turn of the event loop goes out as one message.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from service.workers.records import Record, pack, unpack

logger = logging.getLogger(__name__)

# Messages are sent off beyond this, so that none is longer than this, one record and its text.
_MESSAGE_BYTES = 32 << 10
_RECEIVE_BYTES = 128 << 10
# As a plain number: an operation on Python's flags takes as long as a small system call.
_TRUNCATED = int(socket.MSG_TRUNC)
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * array("i").itemsize)
# Of the user's descriptors under way, or of the kernel's memory: others make room.
_SHORTAGES = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S = 0.01
# Nobody waits for a small slot that comes back this late.
_LATE_S = 0.005

OnRecord: TypeAlias = Callable[[Record, "list[int]"], None]


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends, neither of which blocks."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


class Channel:
    """One end, in the event loop of its process.

    Args:
        end: The socket; belongs to the channel from now on.
        on_record: Gets each record, with the file descriptors that came with it.
        on_closed: Called once, when the other side has gone, `close` was called, or a message could
            not be sent or was cut.
    """

    def __init__(
        self, end: socket.socket, on_record: OnRecord, on_closed: Callable[[], None]
    ) -> None:
        self._socket = end
        self._on_record = on_record
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._received = bytearray(_RECEIVE_BYTES)
        self._said: list[bytes] = []
        self._said_bytes = 0
        # Messages that the kernel did not take yet, with the descriptors that go along.
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._flush_handle: asyncio.Handle | None = None
        self._late_handle: asyncio.Handle | None = None
        self._retry_handle: asyncio.Handle | None = None
        self._short = False
        self._open = True
        self._loop.add_reader(end.fileno(), self._readable)

    def send(self, record: Record) -> None:
        """Say it with the others of this turn of the loop; after the end, nobody hears it.

        Raises:
            ValueError: its text is too long.
        """
        data = pack(record)
        self._said.append(data)
        self._said_bytes += len(data)
        if self._said_bytes >= _MESSAGE_BYTES:
            self.flush()
        elif self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self.flush)

    def send_late(self, record: Record) -> None:
        """Say it with what is said next, or soon: it is not worth a message of its own."""
        data = pack(record)
        self._said.append(data)
        self._said_bytes += len(data)
        if self._late_handle is None and self._flush_handle is None:
            self._late_handle = self._loop.call_later(_LATE_S, self.flush)

    def send_descriptor(self, record: Record, descriptor: int) -> None:
        """Say it with a file descriptor, which is closed here once it is on its way."""
        self.flush()
        self._post(pack(record), [descriptor])

    def flush(self) -> None:
        """Send off what was said."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._late_handle is not None:
            self._late_handle.cancel()
            self._late_handle = None
        if self._said:
            message = b"".join(self._said)
            self._said.clear()
            self._said_bytes = 0
            self._post(message, [])

    def close(self) -> None:
        """Hang up."""
        self.flush()
        self._hang_up()

    def _hang_up(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._retry_handle is not None:
            self._retry_handle.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()
        self._on_closed()

    def _post(self, message: bytes, descriptors: list[int]) -> None:
        if not self._open:
            _close(descriptors)
            return
        self._waiting.append((message, descriptors))
        if len(self._waiting) == 1:
            self._writable()

    def _writable(self) -> None:
        while self._waiting:
            message, descriptors = self._waiting[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [message], descriptors)
                else:
                    self._socket.send(message)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._writable)
                return
            except OSError as error:
                self._loop.remove_writer(self._socket.fileno())
                self._not_sent(error)
                return
            self._short = False
            self._waiting.popleft()
            _close(descriptors)
        self._loop.remove_writer(self._socket.fileno())

    def _not_sent(self, error: OSError) -> None:
        """What is to become of the message that the kernel refused, and of those behind it."""
        if isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN:
            # Gone; what it had still said is read first.
            return
        if error.errno in _SHORTAGES:
            if not self._short:
                self._short = True
                logger.warning("channel: messages have to wait: %s", error)
            self._retry_handle = self._loop.call_later(_RETRY_S, self._writable)
            return
        message, descriptors = self._waiting[0]
        logger.error(
            "channel: a message of %d bytes and %d descriptors cannot be sent, hanging up: %s",
            len(message),
            len(descriptors),
            error,
        )
        self._hang_up()

    def _readable(self) -> None:
        # One message a turn, then others have theirs. To ask for more costs a call that is mostly
        # in vain, and the loop is told again of what is left.
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._received], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except ConnectionResetError:
            size, ancillary, flags = 0, [], 0
        if not size:
            self.close()
            return
        descriptors = _descriptors(ancillary) if ancillary else []
        if flags & _TRUNCATED:
            _close(descriptors)
            logger.error(
                "channel: a message must have at most %d bytes, had more, hanging up",
                _RECEIVE_BYTES,
            )
            self._hang_up()
            return
        for record in unpack(memoryview(self._received)[:size]):
            self._on_record(record, descriptors)
        _close(descriptors)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _close(descriptors: list[int]) -> None:
    """Close those that nobody has taken."""
    for descriptor in descriptors:
        os.close(descriptor)
