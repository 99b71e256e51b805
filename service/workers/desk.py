"""The engine's side of one front end: what its requests hold, and their way into the batcher.

All that front ends hold is written down here, in the engine's process, by request. When one dies,
everything on its list comes back, at once or when the batch that still uses it has ended; nothing
can be lost that is not on a list.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine
from functools import partial

from service.batching.admission import Admission, Lease
from service.batching.batcher import Batcher
from service.batching.blocks import Block, Blocks
from service.batching.request import Answer, PendingRequest
from service.engine.base import ModelSpec
from service.errors import QueueFull, ServiceError
from service.metrics import Metrics
from service.shared_memory import Regions
from service.shared_requests import SharedRequests
from service.wire.window import Window
from service.workers.bundle_desk import BundleDesk
from service.workers.channel import Channel
from service.workers.records import (
    MAX_TEXT_BYTES,
    Document,
    Kind,
    Record,
    pack_error,
    unpack_form,
    unpack_windows,
)
from service.workers.regions import answer_call

logger = logging.getLogger(__name__)


class Held:
    """What one request of a front end holds. For the batcher it is the lease.

    Attributes:
        lease: Budget and the slot of its body.
        request: Once the batcher has it.
        destination: The slot of its answer, once it is taken; None for one in clients' memory.
        is_taken: It was submitted, though the batcher may not have it yet.
        is_cancelled: Its client left before the batcher had it.
    """

    __slots__ = (
        "_engine_has_it",
        "_wanted",
        "destination",
        "is_cancelled",
        "is_taken",
        "lease",
        "request",
    )

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.request: PendingRequest | None = None
        self.destination: Block | None = None
        self.is_taken = self.is_cancelled = self._engine_has_it = False
        self._wanted = True

    @property
    def slot(self) -> Block:
        """Where its body is."""
        assert isinstance(self.lease.slot, Block)
        return self.lease.slot

    def taken(self, destination: Block | None) -> None:
        """From now on its `release` says when nobody uses the slots any more."""
        self.destination = destination
        self._engine_has_it = self.is_taken = True

    def settle(self, tokens: int, nbytes: int) -> None:
        """Correct the estimates once the body is decoded."""
        self.lease.settle(tokens, nbytes)

    def start(self) -> None:
        """The request waits no longer."""
        self.lease.start()

    def release(self) -> None:
        """The batcher and the engine are through with it."""
        self._engine_has_it = False
        self.lease.release()
        if not self._wanted and self.destination is not None:
            self.destination.release()

    def drop(self) -> None:
        """The front end is through with it, or has died."""
        self._wanted = False
        if not self._engine_has_it:
            self.release()


class Desk:
    """Answers the records of one front end.

    Args:
        channel: Makes the channel to it, given what to call with a record.
        answers: Where slots for answers come from.
        rooms: Where rooms for bundles come from.
        on_ready: Called when it can take connections.
        regions: Clients' memory; None where it is not allowed.
        shared: Takes the requests whose tensors lie there.
    """

    def __init__(
        self,
        channel: Callable[[Callable[[Record, list[int]], None]], Channel],
        *,
        model: ModelSpec,
        admission: Admission,
        batcher: Batcher,
        metrics: Metrics,
        answers: Blocks,
        rooms: Blocks,
        on_ready: Callable[[], None],
        regions: Regions | None = None,
        shared: SharedRequests | None = None,
    ) -> None:
        self._regions = regions
        self._shared = shared
        # Or the loop, which knows tasks by weak references alone, might lose them.
        self._tasks: set[asyncio.Task[None]] = set()
        self._model = model
        self._admission = admission
        self._batcher = batcher
        self._metrics = metrics
        self._answers = answers
        self._on_ready = on_ready
        self._held: dict[int, Held] = {}
        self._bundles = BundleDesk(
            rooms, model=model, admission=admission, batcher=batcher, say=self._say
        )
        self._closed = False
        self._handlers: dict[int, Callable[[Record], None]] = {
            Kind.READY: self._ready,
            Kind.ADMIT: self._admit,
            Kind.GROW: self._grow,
            Kind.PLACE: self._place,
            Kind.SUBMIT: self._submit,
            Kind.SHARED: self._submit_at_once,
            Kind.BUNDLE: self._bundles.submit,
            Kind.CANCEL: self._cancel,
            Kind.RELEASE: self._release,
            Kind.ASK: self._ask,
            Kind.REGION: self._region,
        }
        self._channel = channel(self._read)

    @property
    def requests(self) -> int:
        """How many of its requests and bundles hold something."""
        return len(self._held) + len(self._bundles)

    def closed(self) -> None:
        """The front end has gone: take back all it had."""
        self._closed = True
        while self._held:
            _, held = self._held.popitem()
            if held.request is not None:
                self._batcher.cancel(held.request)
            held.drop()
        self._bundles.closed()

    def _read(self, record: Record, _: list[int]) -> None:
        try:
            self._handlers[record.kind](record)
        except QueueFull as error:
            self._say(Record(Kind.FAILED, request=record.request, text=pack_error(error)))
        except (KeyError, ValueError, IndexError) as error:
            self._broke(error)

    def _say(self, record: Record) -> None:
        self._channel.send(record)

    def _ready(self, _: Record) -> None:
        self._bundles.open()
        self._on_ready()

    def _admit(self, record: Record) -> None:
        self._grant(record.request, self._hold(record, record.body_bytes))

    def _hold(self, record: Record, slot_bytes: int) -> Held:
        if record.request in self._held:
            raise ValueError(f"request: must be new, {record.request} holds something")
        lease = self._admission.admit(record.tokens, record.nbytes, slot_bytes=slot_bytes)
        held = self._held[record.request] = Held(lease)
        return held

    def _grow(self, record: Record) -> None:
        held = self._held[record.request]
        held.lease.grow(record.tokens, record.nbytes)
        self._grant(record.request, held)

    def _place(self, record: Record) -> None:
        held = self._held[record.request]
        if held.is_taken:
            raise ValueError(f"request: must not be submitted yet, {record.request} is")
        held.lease.exchange_slot(record.nbytes)
        self._grant(record.request, held)

    def _grant(self, request: int, held: Held) -> None:
        slot = held.slot
        self._say(Record(Kind.GRANT, request=request, offset=slot.offset, nbytes=slot.view.nbytes))

    def _submit(self, record: Record) -> None:
        held = self._held[record.request]
        if held.is_taken:
            raise ValueError(f"request: must not be submitted yet, {record.request} is")
        self._queue(record, held, *unpack_windows(record.text))

    def _submit_at_once(self, record: Record) -> None:
        source, target = unpack_windows(record.text)
        if source is None:
            raise ValueError(
                "windows: must be of the input, which no slot was granted for, are not"
            )
        self._queue(record, self._hold(record, 0), source, target)

    def _queue(
        self, record: Record, held: Held, source: Window | None, target: Window | None
    ) -> None:
        number, tokens = record.request, record.tokens
        output, dtype, output_dtype = unpack_form(record.flag)
        if record.layer not in self._model.layers:
            raise ValueError(f"layer: must be resident, is {record.layer}")
        if record.text and self._shared is None:
            raise ValueError("windows: must be of regions, none are allowed")
        input_nbytes = tokens * self._model.hidden_size * dtype.itemsize
        data = memoryview(b"")
        if source is None:
            data = self._rows(held, record, input_nbytes)
        elif source.nbytes != input_nbytes or tokens < 0:
            raise ValueError(f"rows: must be {input_nbytes} bytes, the window has {source.nbytes}")
        output_nbytes = tokens * self._model.width(output) * output_dtype.itemsize
        destination = None
        if target is None:
            try:
                destination = self._answers.acquire(output_nbytes)
            except QueueFull:
                del self._held[number]
                held.drop()
                raise
        held.settle(tokens, record.body_bytes)
        request = PendingRequest(
            layer=record.layer,
            output=output,
            tokens=tokens,
            data=data,
            dtype=dtype,
            output_dtype=output_dtype,
            output_nbytes=output_nbytes,
            lease=held,
            deadline=None if math.isinf(record.first_s) else record.first_s,
            output_data=None if destination is None else destination.view,
        )
        held.taken(destination)
        if source is None and target is None:
            self._queued(number, held, request, self._batcher.submit(request))
        else:
            self._spawn(self._submit_shared(number, held, request, source, target))

    def _queued(
        self, number: int, held: Held, request: PendingRequest, future: asyncio.Future[Answer]
    ) -> None:
        held.request = request
        future.add_done_callback(partial(self._ended, number, held))

    async def _submit_shared(
        self,
        number: int,
        held: Held,
        request: PendingRequest,
        source: Window | None,
        target: Window | None,
    ) -> None:
        assert self._shared is not None
        try:
            future = await self._shared.submit(
                request,
                held.lease,
                source,
                target,
                wanted=lambda: not (self._closed or held.is_cancelled),
            )
        except ServiceError as error:
            self._failed(number, held, error)
        else:
            self._queued(number, held, request, future)

    def _failed(self, number: int, held: Held, error: BaseException) -> None:
        if not self._closed:
            del self._held[number]
            held.drop()
            self._say(Record(Kind.FAILED, request=number, text=pack_error(error)))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        # Only a bug in a front end says what makes no sense; its other requests are lost, but
        # nobody else's.
        logger.error("a front end broke the protocol, hanging up: %r", error, exc_info=error)
        self._channel.close()

    def _rows(self, held: Held, record: Record, nbytes: int) -> memoryview:
        slot = held.slot.view
        start = record.offset - held.slot.offset
        if record.nbytes != nbytes or not 0 <= start <= start + nbytes <= slot.nbytes:
            raise ValueError(
                f"rows: must be {nbytes} bytes in the {slot.nbytes} of the request's slot, are "
                f"{record.nbytes} from {start} on"
            )
        return slot[start : start + nbytes]

    def _ended(self, number: int, held: Held, future: asyncio.Future[Answer]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(number, held, error)
            return
        if self._closed:
            return
        answer = future.result()
        # In the client's own memory there is nothing to send.
        offset, nbytes = 0, 0
        if held.destination is not None:
            offset, nbytes = held.destination.offset, answer.data.nbytes
        self._say(
            Record(
                Kind.DONE,
                # Clients that are slow to take their answers may not hold all the slots.
                flag=int(2 * self._answers.lent_bytes > self._answers.size),
                request=number,
                offset=offset,
                nbytes=nbytes,
                tokens=answer.batch_tokens,
                first_s=answer.queue_s,
                second_s=answer.execute_s,
                text=answer.kernel.encode(),
            )
        )

    def _cancel(self, record: Record) -> None:
        if self._bundles.cancel(record.request):
            return
        # Its end may be on its way already.
        held = self._held.get(record.request)
        if held is None:
            return
        if held.request is None:
            held.is_cancelled = True
        else:
            self._batcher.cancel(held.request)

    def _release(self, record: Record) -> None:
        held = self._held[record.request]
        if held.is_taken and (held.request is None or not held.request.future.done()):
            raise ValueError(f"request: must have ended to be released, {record.request} has not")
        del self._held[record.request]
        held.drop()

    def _region(self, record: Record) -> None:
        if self._regions is None:
            raise ValueError("region: must be allowed, none is")
        self._spawn(self._answer_call(record.request, self._regions, record.text))

    async def _answer_call(self, number: int, regions: Regions, text: bytes) -> None:
        try:
            self._say_text(number, await answer_call(regions, text))
        except ServiceError as error:
            self._say(Record(Kind.FAILED, request=number, text=pack_error(error)))

    def _ask(self, record: Record) -> None:
        if record.flag == Document.METRICS:
            text = self._metrics.render()
        else:
            text = json.dumps(self._metrics.statistics()).encode()
        self._say_text(record.request, text)

    def _say_text(self, number: int, text: bytes) -> None:
        pieces = [text[at : at + MAX_TEXT_BYTES] for at in range(0, len(text), MAX_TEXT_BYTES)]
        for index, piece in enumerate(pieces, start=1):
            last = int(index == len(pieces))
            self._say(Record(Kind.TEXT, request=number, flag=last, text=piece))
