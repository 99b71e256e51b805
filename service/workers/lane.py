"""The lane of a front end: connections that repeat themselves are served without the interpreter.

A client sends the same head with each request of a size. When one has come twice the usual way, it
is known what it means, and its connection moves into liblane.so, which compares heads and nothing
else. Here rows that have gathered there are put into rooms, sent off as bundles and answered, by
one step of Python for each bundle. Whatever is out of the ordinary brings a connection back, with
what was read of it, as if it had never been away.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.config import Settings
from service.counts import DURATION_BUCKETS, FrontCounts
from service.errors import DeadlineExceeded, EngineDead, ServiceError
from service.front import InProgress
from service.routes.replies import Headers, RawHeaders, error_reply
from service.routes.small import Meaning
from service.routes.tensor import kernel_headers
from service.workers import lane_library as native
from service.workers.free_rooms import FreeRooms
from service.workers.memory import address
from service.workers.records import Kind, Record, pack_form
from service.workers.rooms import HALF_BYTES, gathering

# Of heads that are known, and of those that have come once or have no meaning.
_HEADS = 256
_SEEN = 1024
# For the rest of a request. Then its connection comes back, and has as long as any other.
_STALL_S = 1.0

FindMeaning = Callable[[bytes, Headers], "Meaning | None"]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A bundle on its way."""

    offset: int
    requests: int
    sent_s: float


class Lane:
    """One front end's.

    Args:
        library: From `load_library`.
        rooms: All rooms of all front ends, in shared memory.
        free: Those that are this front end's and free.
        counts: Where its requests are counted.
        in_progress: Likewise, as long as they are.
        numbers: Of requests and bundles.
        say: Sends a record to the engine's process, at once.
        find_meaning: Of target and headers of a request that was served; None for one that has to
            go the usual way.
        give_back: Gets the descriptor of a connection, and what was read of it.
        default_headers: What all answers begin with.
        clock: That of deadlines, CLOCK_MONOTONIC.

    Raises:
        OSError: it cannot be had.
    """

    def __init__(
        self,
        library: ctypes.PyDLL,
        rooms: memoryview,
        settings: Settings,
        *,
        free: FreeRooms,
        counts: FrontCounts,
        in_progress: InProgress,
        numbers: Callable[[], int],
        say: Callable[[Record], None],
        find_meaning: FindMeaning,
        give_back: Callable[[int, bytes], None],
        default_headers: Callable[[], RawHeaders],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._rooms = address(rooms)
        self._free = free
        self._in_progress = in_progress
        self._find_meaning = find_meaning
        self._numbers = numbers
        self._say = say
        self._give_back = give_back
        self._default_headers = default_headers
        self._clock = clock
        self._timeout_s = settings.request_timeout_s or math.inf
        self._gathering = gathering(settings)
        self._max_tokens = settings.max_batch_tokens
        self._counts = counts
        # Heads that have come, and whether they are known to have no meaning.
        self._seen: OrderedDict[bytes, bool] = OrderedDict()
        # None for a bundle whose clients were told that the engine is dead.
        self._sent: dict[int, _Sent | None] = {}
        self._told = (0, 0, 0)
        self._requests = 0
        self._open = True
        self._emptied = asyncio.Event()
        self._bounds = (ctypes.c_double * len(DURATION_BUCKETS))(*DURATION_BUCKETS)
        limits = native.Limits(
            settings.max_batch_tokens,
            HALF_BYTES,
            _HEADS,
            settings.keep_alive_s,
            _STALL_S,
            settings.receive_timeout_s,
        )
        cells = native.Counts(self._bounds, len(self._bounds), *counts.addresses())
        prefix = os.urandom(6).hex().encode()
        handle = library.lane_create(ctypes.byref(limits), ctypes.byref(cells), prefix)
        if not handle:
            raise OSError("lane: descriptors or memory are short")
        self._handle = handle
        weakref.finalize(self, library.lane_destroy, handle)
        self._state: native.State = library.lane_state(handle).contents
        self._bundle = native.Bundle()
        asyncio.get_running_loop().add_reader(library.lane_descriptor(handle), self._readable)
        free.join(self)

    @property
    def connections(self) -> int:
        """How many it has."""
        return self._state.connections

    @property
    def gathered(self) -> tuple[int, int, int]:
        """Requests that wait for a room, their rows and bytes."""
        state = self._state
        return state.waiting_requests, state.waiting_tokens, state.waiting_bytes

    @property
    def oldest_s(self) -> float:
        """When the first of those came."""
        return self._state.oldest_s

    def set_open(self, is_open: bool) -> None:
        """Whether connections are taken; if not, all that are idle are given back."""
        if is_open != self._open:
            self._open = is_open
            self._library.lane_set_open(self._handle, is_open)
            self._settle()

    def wants(self, head: bytes, target: bytes, headers: Headers) -> bool:
        """Whether a connection may come whose last request, which was served, had this head.

        Args:
            head: As it came, with the empty line.
            target: Path and query in it.
            headers: By lower-case name.
        """
        if not self._open:
            return False
        if self._library.lane_knows(self._handle, head, len(head)):
            return True
        if head not in self._seen:
            self._seen[head] = False
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)
            return False
        if self._seen[head]:
            return False
        meaning = self._find_meaning(target, headers)
        if meaning is None or not self._learn(head, meaning):
            self._seen[head] = True
            return False
        del self._seen[head]
        return True

    def adopt(self, descriptor: int) -> bool:
        """Take a connection that `wants` approved of; if not, it stays the caller's."""
        return bool(self._library.lane_adopt(self._handle, descriptor) == 0)

    async def none_left(self, timeout_s: float) -> int:
        """Wait until it has no connection, at most so long; how many it has."""
        ends_s = self._clock() + timeout_s
        while self.connections and (left_s := ends_s - self._clock()) > 0:
            self._emptied.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), left_s)
        return self.connections

    def tick(self) -> None:
        """Ten times a second: look after those who let others wait."""
        self._library.lane_sweep(self._handle)
        before_s = self._clock() - self._timeout_s
        if self._state.oldest_s < before_s:
            refusal = self._refusal(self._too_late())
            self._library.lane_refuse_waiting(self._handle, before_s, ctypes.byref(refusal))
        self._settle()

    def flush(self) -> None:
        """Send off what waits, as far as there are rooms."""
        library, state, bundle = self._library, self._state, self._bundle
        while state.waiting_requests and self._free:
            offset, number = self._free.take(), self._numbers()
            library.lane_load(self._handle, number, self._rooms + offset, ctypes.byref(bundle))
            self._sent[number] = _Sent(offset, bundle.requests, self._clock())
            layer, form = divmod(bundle.group, 1 << 8)
            self._say(
                Record(
                    Kind.BUNDLE,
                    form,
                    layer,
                    number,
                    offset,
                    bundle.nbytes,
                    bundle.tokens,
                    bundle.requests,
                    bundle.oldest_s + self._timeout_s,
                    bundle.waited_s,
                )
            )
        self._settle()

    def done(self, record: Record) -> bool:
        """A bundle was answered; whether it is one of the lane's."""
        number = record.request
        if number not in self._sent:
            return False
        sent = self._sent.pop(number)
        if sent is None:
            return True
        first = _lines(200, self._default_headers())
        second = _join(kernel_headers(record.text.decode(), record.tokens))
        answer = native.Answer(
            first, len(first), second, len(second), sent.sent_s, record.first_s, record.second_s
        )
        answers = self._rooms + sent.offset + HALF_BYTES
        self._library.lane_answer(self._handle, number, answers, ctypes.byref(answer))
        self._free.give(sent.offset)
        self._settle()
        return True

    def failed(self, number: int, error: ServiceError) -> bool:
        """A bundle failed; whether it is one of the lane's."""
        if number not in self._sent:
            return False
        if isinstance(error, EngineDead):
            # For all of them, and it may use their rooms until it ends.
            self.fail_all(error)
        sent = self._sent.pop(number)
        if sent is None:
            return True
        before_s = -math.inf
        if isinstance(error, DeadlineExceeded):
            before_s = self._clock() - self._timeout_s
            error = self._too_late()
        elif sent.requests == 1:
            before_s = math.inf
        # Who is not late waits on. Others were refused together or failed together: each goes once
        # more, by itself.
        self._dissolve(number, sent, before_s, error, keep=isinstance(error, DeadlineExceeded))
        self._free.give(sent.offset)
        self._settle()
        return True

    def fail_all(self, error: ServiceError) -> None:
        """End all that waits or travels, and take no more."""
        self._open = False
        self._library.lane_set_open(self._handle, False)
        for number, sent in self._sent.items():
            if sent is not None:
                self._dissolve(number, sent, math.inf, error)
        self._sent = dict.fromkeys(self._sent)
        refusal = self._refusal(error)
        self._library.lane_refuse_waiting(self._handle, math.inf, ctypes.byref(refusal))
        self._settle()

    def _readable(self) -> None:
        tokens, nbytes = self._free.beside(self)
        tokens, nbytes = self._gathering.tokens - tokens, self._gathering.nbytes - nbytes
        if self._free:
            # What goes at once does not gather.
            tokens, nbytes = max(tokens, self._max_tokens), max(nbytes, HALF_BYTES)
        self._library.lane_turn(self._handle, tokens, nbytes)
        self.flush()

    def _settle(self) -> None:
        """What is to be done behind every call."""
        state = self._state
        if self.gathered != self._told:
            self._told = self.gathered
            self._free.tell()
        if state.requests != self._requests:
            self._in_progress.add(state.requests - self._requests)
            self._requests = state.requests
        if not state.connections:
            self._emptied.set()
        while state.unwanted:
            self._say(Record(Kind.CANCEL, request=self._library.lane_take_unwanted(self._handle)))
        while state.given_back:
            found = native.GivenBack()
            self._library.lane_take_back(self._handle, ctypes.byref(found))
            read = ctypes.string_at(found.read or 0, found.read_bytes) if found.read_bytes else b""
            self._give_back(found.descriptor, read)

    def _learn(self, head: bytes, meaning: Meaning) -> bool:
        tail = _join([*meaning.headers, (b"content-length", b"%d" % meaning.answer_bytes)])
        form = pack_form(meaning.output, meaning.dtype, meaning.output_dtype)
        request_id = meaning.request_id
        given = native.Head(
            head,
            len(head),
            meaning.body_bytes,
            meaning.answer_bytes,
            meaning.tokens,
            meaning.layer << 8 | form,
            tail + b"\r\n",
            len(tail) + 2,
            request_id,
            len(request_id),
        )
        return bool(self._library.lane_learn(self._handle, ctypes.byref(given)) == 0)

    def _dissolve(
        self, number: int, sent: _Sent, before_s: float, error: ServiceError, *, keep: bool = False
    ) -> None:
        refusal = ctypes.byref(self._refusal(error))
        rows = self._rooms + sent.offset
        self._library.lane_dissolve(self._handle, number, rows, before_s, refusal, keep)

    def _refusal(self, error: ServiceError) -> native.Refusal:
        reply = error_reply(error, [])
        body = b"".join(reply.chunks)
        first = _lines(reply.status, self._default_headers())
        length = (b"content-length", b"%d" % len(body))
        second = _join([*reply.headers, length]) + b"\r\n" + body
        count = self._counts.address_of("mlp", error.code)
        closes = (b"connection", b"close") in reply.headers
        return native.Refusal(first, len(first), second, len(second), count, closes)

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"deadline: passed after {self._timeout_s:.3f} s in the queue; not executed"
        )


def _lines(status: int, headers: RawHeaders) -> bytes:
    return bytes(STATUS_LINE[status]) + _join(headers)


def _join(headers: RawHeaders) -> bytes:
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])
