"""A front end's small requests, bundled: rows behind rows in a room, one record for all of them.

A request that finds a room free waits for nobody; what comes while all rooms are on their way
gathers and goes together. A bundle that fails is taken apart: its members go once more, each by
itself, so that none pays for its neighbours.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, cast

from service.batching.request import Answer, BodyRoom, PendingRequest
from service.config import Settings
from service.errors import Cancelled, DeadlineExceeded, EngineDead, ServiceError
from service.workers.free_rooms import FreeRooms
from service.workers.records import Kind, Record, pack_form
from service.workers.rooms import HALF_BYTES, SMALL_BYTES, gathering

# Layer, output and element types.
Key: TypeAlias = tuple[int, int]

# Of a request's rows, on average. Up to that, a second copy is cheaper than a step of Python each.
_JOINED_BYTES = 8 << 10
# Of the usual time in the queue. Who allows less would end its whole bundle early.
_USUAL = 0.9


class Gathered:
    """What a small request holds: nothing, its bundle does.

    Attributes:
        bundle: What it travels in, once it does.
    """

    __slots__ = ("bundle",)

    def __init__(self) -> None:
        self.bundle: Bundle | None = None

    @property
    def slot(self) -> BodyRoom:
        """Its body has arrived."""
        raise NotImplementedError

    def settle(self, tokens: int, nbytes: int) -> None:
        """Nothing was estimated."""

    def start(self) -> None:
        """Only the engine's process knows when a request starts."""
        raise NotImplementedError

    def release(self) -> None:
        """Nothing was held."""


class Bundle:
    """Requests that travel together."""

    __slots__ = ("members", "number", "offset", "sent_s")

    def __init__(
        self, number: int, offset: int, members: list[PendingRequest], sent_s: float
    ) -> None:
        self.number = number
        self.offset = offset
        self.members = members
        self.sent_s = sent_s

    @property
    def wanted(self) -> bool:
        """Somebody still waits for it."""
        return not all(member.future.done() for member in self.members)


class Bundles:
    """Gathers small requests, sends them off in bundles and hands each its rows.

    Args:
        rooms: All rooms of all front ends, in shared memory.
        free: Those that are this front end's and free.
        numbers: Of requests and bundles.
        say: Sends a record to the engine's process, at once.
        alone: Queues a request by itself; the future ends with its answer.
        clock: That of deadlines.
    """

    def __init__(
        self,
        rooms: memoryview,
        settings: Settings,
        free: FreeRooms,
        *,
        numbers: Callable[[], int],
        say: Callable[[Record], None],
        alone: Callable[[PendingRequest], Awaitable[asyncio.Future[Answer]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rooms = rooms
        self._usual_s = settings.request_timeout_s * _USUAL
        self._max_tokens = settings.max_batch_tokens
        self._gathering = gathering(settings)
        self._numbers = numbers
        self._say = say
        self._alone = alone
        self._clock = clock
        self._free = free
        # By layer and form, those first whose turn it is.
        self._groups: dict[Key, dict[PendingRequest, None]] = {}
        self._requests = self._tokens = self._nbytes = 0
        self._sent: dict[int, Bundle] = {}
        self._dead = False
        self._again: set[asyncio.Task[None]] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        free.join(self)

    @property
    def gathered(self) -> tuple[int, int, int]:
        """Requests that wait for a room, their rows and bytes."""
        return self._requests, self._tokens, self._nbytes

    @property
    def oldest_s(self) -> float:
        """When the first of those whose turn it is came."""
        if not self._groups:
            return math.inf
        return next(iter(next(iter(self._groups.values())))).arrival

    def takes(self, tokens: int, nbytes: int) -> bool:
        """Whether a small request that has arrived is to be bundled, as far as can be told."""
        if self._dead or not tokens or nbytes > SMALL_BYTES:
            return False
        tokens += self._tokens
        nbytes += self._nbytes
        if self._free and tokens <= self._max_tokens and nbytes <= HALF_BYTES:
            return True
        if not self._free.granted:
            # There is no room to wait for.
            return False
        tokens_beside, nbytes_beside = self._free.beside(self)
        gathering = self._gathering
        return (
            tokens + tokens_beside <= gathering.tokens
            and nbytes + nbytes_beside <= gathering.nbytes
        )

    def add(self, request: PendingRequest) -> asyncio.Future[Answer] | None:
        """Let a request go with the next bundle; None where it has to travel by itself."""
        now = self._clock()
        deadline = request.deadline
        usual = deadline is None or 0 < self._usual_s <= deadline - now
        if not request.tokens or not usual or _largest(request) > SMALL_BYTES:
            return None
        loop = asyncio.get_running_loop()
        request.arrival = now
        request.future = loop.create_future()
        self._gather(request)
        if not self._free:
            self._free.tell()
            self._watch_deadlines()
        elif self._flush_handle is None:
            # Once all that is ready in this turn of the loop has been added.
            self._flush_handle = loop.call_soon(self.flush)
        return request.future

    def cancel(self, request: PendingRequest, held: Gathered) -> None:
        """The client has left. What gathers is dropped, what travels is computed for the others."""
        if not request.future.done():
            request.future.set_exception(Cancelled("request: the client left"))
        bundle, key = held.bundle, _key(request)
        group = self._groups.get(key, {})
        if request in group:
            del group[request]
            if not group:
                del self._groups[key]
            self._left(request)
            self._free.tell()
        elif bundle is not None and bundle.number in self._sent and not bundle.wanted:
            self._say(Record(Kind.CANCEL, request=bundle.number))

    def done(self, record: Record) -> bool:
        """A bundle was answered; whether there is such a bundle."""
        bundle = self._sent.pop(record.request, None)
        if bundle is None:
            return False
        start = bundle.offset + HALF_BYTES
        # One copy for all of them, and the room is free.
        data = memoryview(self._rooms[start : start + record.nbytes].tobytes())
        kernel, tokens, queue_s, execute_s = (
            record.text.decode(),
            record.tokens,
            record.first_s,
            record.second_s,
        )
        at = 0
        for member in bundle.members:
            end = at + member.output_nbytes
            if not member.future.done():
                waited_s = queue_s + bundle.sent_s - member.arrival
                member.future.set_result(Answer(data[at:end], kernel, tokens, waited_s, execute_s))
            at = end
        self._free.give(bundle.offset)
        return True

    def failed(self, number: int, error: ServiceError) -> bool:
        """A bundle failed; whether there is such a bundle."""
        bundle = self._sent.pop(number, None)
        if bundle is None:
            return False
        waiting = [member for member in bundle.members if not member.future.done()]
        if isinstance(error, EngineDead):
            # For all of them, and it may use their rooms until it ends.
            self._sent[number] = bundle
            self.fail_all(error)
            return True
        if isinstance(error, DeadlineExceeded):
            self._expire(waiting)
        elif len(bundle.members) == 1:
            for member in waiting:
                member.future.set_exception(error)
        else:
            # Refused together or failed together: none is at fault before it has failed alone.
            for member in waiting:
                task = asyncio.ensure_future(self._send_again(member))
                self._again.add(task)
                task.add_done_callback(self._again.discard)
        self._free.give(bundle.offset)
        return True

    def fail_all(self, error: ServiceError) -> None:
        """End all that gathers or travels, and take no more."""
        self._dead = True
        bundles = [bundle.members for bundle in self._sent.values()]
        for members in (*self._groups.values(), *bundles):
            for member in members:
                if not member.future.done():
                    member.future.set_exception(error)
        for group in self._groups.values():
            for request in group:
                self._left(request)
        self._groups.clear()
        self._free.tell()

    def _gather(self, request: PendingRequest) -> None:
        tokens, nbytes = request.tokens, request.data.nbytes
        self._groups.setdefault(_key(request), {})[request] = None
        self._requests += 1
        self._tokens += tokens
        self._nbytes += nbytes

    def flush(self) -> None:
        """Send off what waits, as far as there are rooms."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        while self._groups and self._free:
            key = next(iter(self._groups))
            members = self._take(key)
            if members:
                self._send(key, members)
        self._free.tell()
        if self._groups:
            self._watch_deadlines()

    def _take(self, key: Key) -> list[PendingRequest]:
        """As many of a group as fit a room and a batch; what is left is behind the others."""
        group = self._groups.pop(key)
        members: list[PendingRequest] = []
        tokens = largest = 0
        for request in group:
            tokens += request.tokens
            largest += _largest(request)
            if tokens > self._max_tokens or largest > HALF_BYTES:
                break
            members.append(request)
        for member in members:
            del group[member]
            self._left(member)
        if group:
            self._groups[key] = group
        return members

    def _left(self, request: PendingRequest) -> None:
        self._requests -= 1
        self._tokens -= request.tokens
        self._nbytes -= request.data.nbytes

    def _send(self, key: Key, members: list[PendingRequest]) -> None:
        offset, number = self._free.take(), self._numbers()
        now = self._clock()
        bundle = self._sent[number] = Bundle(number, offset, members, now)
        # Only what came in a body is gathered.
        parts = cast("list[memoryview]", [member.data for member in members])
        nbytes = self._put(offset, parts)
        for member in members:
            assert isinstance(member.lease, Gathered)
            member.lease.bundle = bundle
        layer, form = key
        self._say(
            Record(
                Kind.BUNDLE,
                form,
                layer,
                number,
                offset,
                nbytes,
                sum([member.tokens for member in members]),
                len(members),
                min([math.inf if m.deadline is None else m.deadline for m in members]),
                now * len(members) - sum([member.arrival for member in members]),
            )
        )

    def _put(self, offset: int, parts: list[memoryview]) -> int:
        """Copy rows into a room, from its beginning on; how many bytes they are."""
        rooms = self._rooms
        nbytes = sum([part.nbytes for part in parts])
        if nbytes <= _JOINED_BYTES * len(parts):
            rooms[offset : offset + nbytes] = b"".join(parts)
        else:
            for part in parts:
                rooms[offset : offset + part.nbytes] = part
                offset += part.nbytes
        return nbytes

    def _watch_deadlines(self) -> None:
        if self._expiry is not None or not self._usual_s:
            return
        deadlines = [next(iter(group)).deadline or math.inf for group in self._groups.values()]
        left_s = min(deadlines) - self._clock()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(0.0, left_s), self._expire_gathered)

    def _expire_gathered(self) -> None:
        """Rooms are on their way for as long as requests may wait: look who has waited enough."""
        self._expiry = None
        waiting = [request for group in self._groups.values() for request in group]
        self._groups.clear()
        for request in waiting:
            self._left(request)
        self._expire(waiting)
        self.flush()

    def _expire(self, members: Iterable[PendingRequest]) -> None:
        """End those whose time is over; the others gather again."""
        now = self._clock()
        for member in members:
            if member.deadline is not None and member.deadline <= now:
                waited_s = now - member.arrival
                member.future.set_exception(
                    DeadlineExceeded(
                        f"deadline: passed after {waited_s:.3f} s in the queue; not executed"
                    )
                )
            else:
                self._gather(member)

    async def _send_again(self, member: PendingRequest) -> None:
        try:
            answer = await (await self._alone(member))
        except ServiceError as error:
            if not member.future.done():
                member.future.set_exception(error)
            return
        if answer.release is not None:
            # Who waits for it has no way to say when it has been sent.
            data, release = memoryview(answer.data.tobytes()), answer.release
            answer = answer._replace(data=data, release=None)
            release()
        if not member.future.done():
            member.future.set_result(answer)


def _largest(request: PendingRequest) -> int:
    return max(request.data.nbytes, request.output_nbytes)


def _key(request: PendingRequest) -> Key:
    layer, output = request.key
    return layer, pack_form(output, request.dtype, request.output_dtype)
