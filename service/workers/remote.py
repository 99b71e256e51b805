"""A front end's view of the service: every question becomes a record to the engine's process."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from service.batching.health import Health
from service.batching.request import Answer, Holding, PendingRequest
from service.config import Settings
from service.counts import FrontCounts
from service.engine.base import host_rows
from service.errors import EngineDead, ServiceError
from service.front import InProgress
from service.shared_memory import Regions
from service.wire.window import Window
from service.workers.asking import Asking
from service.workers.bundles import Bundles, Gathered
from service.workers.channel import Channel
from service.workers.free_rooms import FreeRooms
from service.workers.hello import Hello
from service.workers.holdings import RemoteHolding, RemoteSlot
from service.workers.memory import SharedMemory
from service.workers.records import (
    Document,
    Kind,
    Record,
    pack_form,
    pack_windows,
    unpack_error,
)
from service.workers.regions import RemoteRegions
from service.workers.rooms import gathering

logger = logging.getLogger(__name__)

# Of what has no row in its body.
_NOWHERE = RemoteSlot(0, memoryview(b""))
# Copied out of its slot, which goes back at once: cheaper than to wait until it is written.
_COPIED_BYTES = 64 << 10


class ServesBundles(Protocol):
    """Who has bundles of its own on their way."""

    def set_open(self, is_open: bool) -> None:
        """Whether requests are taken."""

    def done(self, record: Record) -> bool:
        """A bundle was answered; whether it is one of its own."""

    def failed(self, number: int, error: ServiceError) -> bool:
        """A bundle failed; whether it is one of its own."""

    def fail_all(self, error: ServiceError) -> None:
        """End everything, and take no more."""


class MakeLane(Protocol):
    """Makes a lane; see service.workers.lane.Lane."""

    def __call__(
        self,
        rooms: memoryview,
        settings: Settings,
        *,
        free: FreeRooms,
        counts: FrontCounts,
        in_progress: InProgress,
        numbers: Callable[[], int],
        say: Callable[[Record], None],
    ) -> ServesBundles:
        """See there."""


class RemoteFront:
    """The Front of a front end.

    Args:
        hello: What is served.
        memory: Shared with the engine's process.
        on_dead: Called once when this process can serve nothing any more.
        on_stop: Called when the engine's process wants it to drain and end.
        on_connection: Gets the file descriptor of a client's connection, to keep.
    """

    def __init__(
        self,
        hello: Hello,
        memory: SharedMemory,
        *,
        on_dead: Callable[[], None],
        on_stop: Callable[[], None],
        on_connection: Callable[[int], None],
    ) -> None:
        self.settings = hello.settings
        self.model = hello.model
        self.backend, self.device, self.reason = hello.backend, hello.device, hello.reason
        self.health = Health()
        self.in_progress = InProgress()
        self.regions: Regions | None = None
        if hello.settings.client_shared_memory:
            self.regions = RemoteRegions(self._call_regions, serves_cuda=hello.cuda_shared_memory)
        self.counts: FrontCounts = memory.counts(hello.index)
        self._memory = memory
        self._on_dead = on_dead
        self._on_connection = on_connection
        self._numbers = itertools.count(1)
        self._asking = Asking(self._say, self.release)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._dead: ServiceError | None = None
        self._lost_connections = False
        self._free = FreeRooms(self.counts)
        self._lane: ServesBundles | None = None
        self._bundles = Bundles(
            memory.rooms,
            hello.settings,
            self._free,
            numbers=self._numbers.__next__,
            say=self._say_now,
            alone=self._submit_alone,
        )
        self._handlers: dict[int, Callable[[Record], None]] = {
            Kind.HEALTH: self._hear_health,
            Kind.STOP: lambda _: on_stop(),
            Kind.ROOM: lambda record: self._free.add(record.offset),
            Kind.GRANT: self._asking.granted,
            Kind.DONE: self._done,
            Kind.FAILED: self._failed,
            Kind.TEXT: self._asking.text,
        }

    def attach(self, channel: Channel) -> None:
        """Where to ask."""
        self._channel = channel

    def open_lane(self, make: MakeLane) -> None:
        """Let requests that repeat themselves go through a lane from now on.

        There is none where all requests wait for company in the engine's process.
        """
        if not gathering(self.settings).tokens:
            return
        self._lane = make(
            self._memory.rooms,
            self.settings,
            free=self._free,
            counts=self.counts,
            in_progress=self.in_progress,
            numbers=self._numbers.__next__,
            say=self._say_now,
        )
        self._set_lane()

    def hear(self, record: Record, descriptors: list[int]) -> None:
        """A record has come."""
        if record.kind == Kind.CONNECTION:
            self._take_connection(descriptors)
        else:
            self._handlers[record.kind](record)

    def _take_connection(self, descriptors: list[int]) -> None:
        if descriptors:
            self._on_connection(descriptors.pop())
            return
        # The kernel passes on no more of them than the process may have open.
        self.counts.connection_closed()
        if not self._lost_connections:
            self._lost_connections = True
            logger.error("connections are lost: raise the limit of open files (ulimit -n)")

    def hung_up(self) -> None:
        """The engine's process has gone."""
        self._die(EngineDead("its process has ended"))

    async def start(self) -> None:
        """Nothing to start: the engine's process has."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def begin_drain(self) -> None:
        """Accept nothing new."""
        self.health.draining()
        self._set_lane()

    def give_up(self, error: BaseException) -> None:
        """The time to drain is over: end everything that is in progress with this error."""
        self.fail_all(error)

    def fail_all(self, error: BaseException) -> None:
        """End everything that is in progress with this error, and refuse what comes."""
        if self._dead is None:
            self._dead = EngineDead(f"engine: {error}")
        self._bundles.fail_all(self._dead)
        if self._lane is not None:
            self._lane.fail_all(self._dead)
        self._asking.fail_all(self._dead)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(self._dead)

    async def admit(
        self, tokens: int, nbytes: int, *, slot_bytes: int | None = None
    ) -> RemoteHolding:
        """Reserve budget, and a slot for the body."""
        number = next(self._numbers)
        body_bytes = nbytes if slot_bytes is None else slot_bytes
        granted = await self._asking.ask_for_grant(
            Record(
                Kind.ADMIT,
                request=number,
                tokens=tokens,
                nbytes=nbytes,
                body_bytes=body_bytes,
            )
        )
        return RemoteHolding(number, self._slot(granted), self.release)

    async def grow(self, held: Holding, tokens: int, nbytes: int) -> None:
        """Hold more, because the body turns out to be larger."""
        assert isinstance(held, RemoteHolding)
        await self._asking.ask(
            Record(Kind.GROW, request=held.request, tokens=tokens, nbytes=nbytes)
        )

    async def submit(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a validated request."""
        return await self._submit(request, b"")

    async def submit_shared(
        self, request: PendingRequest, source: Window | None, target: Window | None
    ) -> asyncio.Future[Answer]:
        """Queue a request whose input or answer lies in a region."""
        return await self._submit(request, pack_windows(source, target))

    async def begin_shared(
        self,
        tokens: int,
        nbytes: int,
        make: Callable[[Holding], PendingRequest],
        source: Window | None,
        target: Window | None,
    ) -> tuple[PendingRequest, asyncio.Future[Answer]]:
        """Admit and queue such a request; in one record where no row is in its body."""
        if source is None:
            request = make(await self.admit(tokens, nbytes, slot_bytes=0))
            return request, await self.submit_shared(request, source, target)
        if self._dead is not None:
            raise self._dead
        request = make(RemoteHolding(next(self._numbers), _NOWHERE, self.release))
        windows = pack_windows(source, target)
        return request, self._say_submit(Kind.SHARED, request, 0, nbytes, windows)

    async def _submit(self, request: PendingRequest, windows: bytes) -> asyncio.Future[Answer]:
        held = request.lease
        assert isinstance(held, RemoteHolding)
        try:
            if self._dead is not None:
                raise self._dead
            data = host_rows(request.data)
            offset = await self._place(held, data)
        except BaseException:
            held.release()
            raise
        return self._say_submit(Kind.SUBMIT, request, offset, data.nbytes, windows)

    def _say_submit(
        self, kind: Kind, request: PendingRequest, offset: int, nbytes: int, windows: bytes
    ) -> asyncio.Future[Answer]:
        held = request.lease
        assert isinstance(held, RemoteHolding)
        layer, output = request.key
        held.submitted()
        future = self._answers[held.request] = asyncio.get_running_loop().create_future()
        self._say(
            Record(
                kind,
                pack_form(output, request.dtype, request.output_dtype),
                layer,
                held.request,
                offset,
                nbytes,
                request.tokens,
                held.body_bytes,
                math.inf if request.deadline is None else request.deadline,
                text=windows,
            )
        )
        return future

    def hold_small(self, tokens: int, nbytes: int) -> Gathered | None:
        """Budget for a small request that has arrived; None where it has to be asked for."""
        return Gathered() if self._bundles.takes(tokens, nbytes) else None

    def submit_small(self, request: PendingRequest) -> asyncio.Future[Answer] | None:
        """Queue a validated request; None where it has to go by itself."""
        return self._bundles.add(request)

    def cancel(self, request: PendingRequest) -> None:
        """The client has left."""
        held = request.lease
        if isinstance(held, Gathered):
            self._bundles.cancel(request, held)
            return
        assert isinstance(held, RemoteHolding)
        if held.request in self._answers:
            self._say(Record(Kind.CANCEL, request=held.request))

    def release(self, request: int) -> None:
        """A request needs nothing any more."""
        self._say(Record(Kind.RELEASE, request=request))

    async def scrape(self) -> bytes:
        """The text of /metrics."""
        return await self._ask(Document.METRICS)

    async def statistics(self) -> dict[str, int]:
        """Counts and total times for the v2 statistics document."""
        found: dict[str, int] = json.loads(await self._ask(Document.STATISTICS))
        return found

    async def _submit_alone(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a request by itself that has travelled in a bundle."""
        data = request.data
        assert isinstance(data, memoryview)
        nbytes = data.nbytes
        held = await self.admit(request.tokens, nbytes)
        held.slot.view[:] = data.cast("B")
        held.settle(request.tokens, nbytes)
        request.lease, request.data = held, held.slot.view
        return await self.submit(request)

    async def _place(self, held: RemoteHolding, data: memoryview) -> int:
        """Where the rows lie in shared memory; what was decoded elsewhere is copied there."""
        if not data.nbytes:
            return held.slot.offset
        offset = self._memory.body_offset(data)
        if offset is not None:
            return offset
        asked = Record(Kind.PLACE, request=held.request, nbytes=data.nbytes)
        slot = self._slot(await self._asking.ask(asked))
        slot.view[:] = data.cast("B")
        return slot.offset

    def _slot(self, granted: Record) -> RemoteSlot:
        start = granted.offset
        return RemoteSlot(start, self._memory.bodies[start : start + granted.nbytes])

    async def _ask(self, document: Document) -> bytes:
        record = Record(Kind.ASK, document, request=next(self._numbers))
        return await self._asking.ask_for_text(record)

    async def _call_regions(self, text: bytes) -> bytes:
        record = Record(Kind.REGION, request=next(self._numbers), text=text)
        return await self._asking.ask_for_text(record)

    def _say(self, record: Record) -> None:
        self._channel.send(record)

    def _say_now(self, record: Record) -> None:
        self._channel.send(record)
        self._channel.flush()

    def _hear_health(self, record: Record) -> None:
        self.health.mirror(record.flag, *json.loads(record.text))
        self._set_lane()
        if not self.health.live:
            self._on_dead_once()

    def _set_lane(self) -> None:
        if self._lane is not None:
            self._lane.set_open(self.health.ready and self._dead is None)

    def _done(self, record: Record) -> None:
        if self._lane is not None and self._lane.done(record):
            return
        if self._bundles.done(record):
            return
        number = record.request
        future = self._answers.pop(number)
        if future.done():
            self.release(number)
            return
        data = self._memory.answers[record.offset : record.offset + record.nbytes]
        release: Callable[[], None] | None = partial(self.release, number)
        if record.flag or record.nbytes <= _COPIED_BYTES:
            data, release = memoryview(data.tobytes()), None
            self._channel.send_late(Record(Kind.RELEASE, request=number))
        kernel = record.text.decode()
        times = (record.first_s, record.second_s)
        future.set_result(Answer(data, kernel, record.tokens, *times, release))

    def _failed(self, record: Record) -> None:
        number = record.request
        error = unpack_error(record.text)
        if self._lane is not None and self._lane.failed(number, error):
            return
        if self._bundles.failed(number, error) or self._asking.failed(number, error):
            return
        future = self._answers.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def _die(self, error: EngineDead) -> None:
        self.health.dead(error)
        self.fail_all(error)
        self._on_dead_once()

    def _on_dead_once(self) -> None:
        on_dead, self._on_dead = self._on_dead, lambda: None
        on_dead()
