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
from collections.abc import Callable
from functools import partial

from service.batching.admission import Admission, Lease
from service.batching.batcher import Batcher
from service.batching.blocks import Block, Blocks
from service.batching.request import Answer, PendingRequest
from service.engine.base import ModelSpec
from service.errors import QueueFull
from service.metrics import Metrics
from service.workers.channel import Channel
from service.workers.records import (
    MAX_TEXT_BYTES,
    Document,
    Kind,
    Record,
    pack_error,
    unpack_form,
)

logger = logging.getLogger(__name__)


class Held:
    """What one request of a front end holds. For the batcher it is the lease.

    Attributes:
        lease: Budget and the slot of its body.
        request: Once it is submitted.
        destination: The slot of its answer, once it is submitted.
    """

    __slots__ = ("_engine_has_it", "_wanted", "destination", "lease", "request")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.request: PendingRequest | None = None
        self.destination: Block | None = None
        self._engine_has_it = False
        self._wanted = True

    @property
    def slot(self) -> Block:
        """Where its body is."""
        assert isinstance(self.lease.slot, Block)
        return self.lease.slot

    def submitted(self, request: PendingRequest, destination: Block) -> None:
        """From now on the batcher says when nobody uses the slots any more."""
        self.request = request
        self.destination = destination
        self._engine_has_it = True

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
        on_ready: Called when it can take connections.
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
        on_ready: Callable[[], None],
    ) -> None:
        self._model = model
        self._admission = admission
        self._batcher = batcher
        self._metrics = metrics
        self._answers = answers
        self._on_ready = on_ready
        self._held: dict[int, Held] = {}
        self._closed = False
        self._handlers = {
            Kind.READY: lambda _: self._on_ready(),
            Kind.ADMIT: self._admit,
            Kind.GROW: self._grow,
            Kind.PLACE: self._place,
            Kind.SUBMIT: self._submit,
            Kind.CANCEL: self._cancel,
            Kind.RELEASE: self._release,
            Kind.ASK: self._ask,
        }
        self._channel = channel(self._read)

    @property
    def requests(self) -> int:
        """How many of its requests hold something."""
        return len(self._held)

    def closed(self) -> None:
        """The front end has gone: take back all it had."""
        self._closed = True
        while self._held:
            _, held = self._held.popitem()
            if held.request is not None:
                self._batcher.cancel(held.request)
            held.drop()

    def _read(self, record: Record, _: list[int]) -> None:
        try:
            self._handlers[Kind(record.kind)](record)
        except QueueFull as error:
            self._say(Record(Kind.FAILED, request=record.request, text=pack_error(error)))
        except (KeyError, ValueError, IndexError) as error:
            # Only a bug in a front end says what makes no sense; its other requests are lost, but
            # nobody else's.
            logger.exception("a front end broke the protocol, hanging up: %r", error)
            self._channel.close()

    def _say(self, record: Record) -> None:
        self._channel.send(record)

    def _admit(self, record: Record) -> None:
        if record.request in self._held:
            raise ValueError(f"request: must be new, {record.request} holds something")
        lease = self._admission.admit(record.tokens, record.nbytes, slot_bytes=record.body_bytes)
        held = self._held[record.request] = Held(lease)
        self._grant(record.request, held)

    def _grow(self, record: Record) -> None:
        held = self._held[record.request]
        held.lease.grow(record.tokens, record.nbytes)
        self._grant(record.request, held)

    def _place(self, record: Record) -> None:
        held = self._held[record.request]
        if held.request is not None:
            raise ValueError(f"request: must not be submitted yet, {record.request} is")
        held.lease.exchange_slot(record.nbytes)
        self._grant(record.request, held)

    def _grant(self, request: int, held: Held) -> None:
        slot = held.slot
        self._say(Record(Kind.GRANT, request=request, offset=slot.offset, nbytes=slot.view.nbytes))

    def _submit(self, record: Record) -> None:
        number, tokens = record.request, record.tokens
        held = self._held[number]
        output, dtype, output_dtype = unpack_form(record.flag)
        if held.request is not None:
            raise ValueError(f"request: must not be submitted yet, {number} is")
        if record.layer not in self._model.layers:
            raise ValueError(f"layer: must be resident, is {record.layer}")
        data = self._rows(held, record, tokens * self._model.hidden_size * dtype.itemsize)
        output_nbytes = tokens * self._model.width(output) * output_dtype.itemsize
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
            output_data=destination.view,
        )
        held.submitted(request, destination)
        future = self._batcher.submit(request)
        future.add_done_callback(partial(self._ended, number, held))

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
        if self._closed:
            return
        if error is not None:
            del self._held[number]
            held.drop()
            self._say(Record(Kind.FAILED, request=number, text=pack_error(error)))
            return
        answer = future.result()
        assert held.destination is not None
        self._say(
            Record(
                Kind.DONE,
                # Clients that are slow to take their answers may not hold all the slots.
                flag=int(2 * self._answers.lent_bytes > self._answers.size),
                request=number,
                offset=held.destination.offset,
                nbytes=answer.data.nbytes,
                tokens=answer.batch_tokens,
                first_s=answer.queue_s,
                second_s=answer.execute_s,
                text=answer.kernel.encode(),
            )
        )

    def _cancel(self, record: Record) -> None:
        # Its end may be on its way already.
        held = self._held.get(record.request)
        if held is not None and held.request is not None:
            self._batcher.cancel(held.request)

    def _release(self, record: Record) -> None:
        held = self._held[record.request]
        if held.request is not None and not held.request.future.done():
            raise ValueError(f"request: must have ended to be released, {record.request} has not")
        del self._held[record.request]
        held.drop()

    def _ask(self, record: Record) -> None:
        if record.flag == Document.METRICS:
            text = self._metrics.render()
        else:
            text = json.dumps(self._metrics.statistics()).encode()
        pieces = [text[at : at + MAX_TEXT_BYTES] for at in range(0, len(text), MAX_TEXT_BYTES)]
        for index, piece in enumerate(pieces, start=1):
            last = int(index == len(pieces))
            self._say(Record(Kind.TEXT, request=record.request, flag=last, text=piece))
