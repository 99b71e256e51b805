"""The engine's side of bundles: a front end's rooms, and the way from a room into the batcher."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from service.batching.admission import Admission
from service.batching.batcher import Batcher
from service.batching.blocks import Block, Blocks
from service.batching.request import Answer, PendingRequest
from service.engine.base import DType, ModelSpec, Output
from service.errors import Cancelled, QueueFull
from service.workers.records import Kind, Record, pack_error, unpack_form
from service.workers.rooms import HALF_BYTES, ROOM_BYTES, ROOMS


class Room:
    """A room as the engine's process sees it; to a bundle's lease it is the slot.

    Attributes:
        busy: A bundle in it is queued or computed.
        freed: To be called once when it is not any more.
    """

    __slots__ = ("_block", "_wanted", "busy", "freed", "view")

    def __init__(self, block: Block) -> None:
        self._block = block
        self._wanted = True
        self.busy = False
        self.freed: Callable[[], None] | None = None
        self.view = block.view

    @property
    def offset(self) -> int:
        """Where it begins among the rooms."""
        return self._block.offset

    def release(self) -> None:
        """The batcher and the engine are through with its bundle."""
        self.busy = False
        if not self._wanted:
            self._block.release()
        freed, self.freed = self.freed, None
        if freed is not None:
            freed()

    def drop(self) -> None:
        """The front end has died."""
        self._wanted = False
        self.freed = None
        if not self.busy:
            self._block.release()


class _Form(NamedTuple):
    """What rows are of and become."""

    output: Output
    dtype: DType
    output_dtype: DType
    row_bytes: int
    answer_row_bytes: int


class BundleDesk:
    """Answers what one front end says of bundles.

    Args:
        rooms: Where rooms come from.
        say: Sends a record to it.
    """

    def __init__(
        self,
        rooms: Blocks,
        *,
        model: ModelSpec,
        admission: Admission,
        batcher: Batcher,
        say: Callable[[Record], None],
    ) -> None:
        self._blocks = rooms
        self._model = model
        self._admission = admission
        self._batcher = batcher
        self._say = say
        self._rooms: dict[int, Room] = {}
        self._requests: dict[int, PendingRequest] = {}
        # By the byte that says so: few, and a step for each bundle.
        self._forms: dict[int, _Form] = {}

    def __len__(self) -> int:
        """Bundles that somebody waits for."""
        return len(self._requests)

    def open(self) -> None:
        """Give it its rooms; without any, all its requests travel by themselves."""
        for _ in range(ROOMS):
            try:
                room = Room(self._blocks.acquire(ROOM_BYTES))
            except QueueFull:
                # Those before it in this place are dead, but what they had is still computed.
                return
            self._rooms[room.offset] = room
            self._say(Record(Kind.ROOM, offset=room.offset, nbytes=ROOM_BYTES))

    def closed(self) -> None:
        """The front end has gone."""
        while self._requests:
            _, request = self._requests.popitem()
            self._batcher.cancel(request)
        while self._rooms:
            _, room = self._rooms.popitem()
            room.drop()

    def submit(self, record: Record) -> None:
        """Queue a bundle.

        Raises:
            QueueFull: there is no budget for it; nothing is held.
            ValueError: it makes no sense.
            KeyError: there is no such room.
        """
        room, tokens, requests = self._rooms[record.offset], record.tokens, record.body_bytes
        form = self._forms.get(record.flag) or self._learn_form(record.flag)
        nbytes, output_nbytes = tokens * form.row_bytes, tokens * form.answer_row_bytes
        if room.busy or record.request in self._requests:
            raise ValueError(f"bundle: must be new in a free room, {record.request} is not")
        if record.layer not in self._model.layers:
            raise ValueError(f"layer: must be resident, is {record.layer}")
        if not 1 <= requests <= tokens or record.nbytes != nbytes:
            raise ValueError(
                f"bundle: must be of 1 to {tokens} requests in {nbytes} bytes, is of {requests} "
                f"in {record.nbytes}"
            )
        if max(nbytes, output_nbytes) > HALF_BYTES:
            raise ValueError(
                f"bundle: rows and answers must be {HALF_BYTES} bytes at most, are {nbytes} and "
                f"{output_nbytes}"
            )
        lease = self._admission.admit_into(room, tokens, nbytes, requests)
        room.busy = True
        request = self._requests[record.request] = PendingRequest(
            layer=record.layer,
            output=form.output,
            tokens=tokens,
            data=room.view[:nbytes],
            dtype=form.dtype,
            output_dtype=form.output_dtype,
            output_nbytes=output_nbytes,
            lease=lease,
            deadline=None if math.isinf(record.first_s) else record.first_s,
            output_data=room.view[HALF_BYTES : HALF_BYTES + output_nbytes],
            requests=requests,
            waited_s=record.second_s,
        )
        future = self._batcher.submit(request)
        future.add_done_callback(partial(self._ended, record.request, room))

    def _learn_form(self, flag: int) -> _Form:
        output, dtype, output_dtype = unpack_form(flag)
        model = self._model
        found = self._forms[flag] = _Form(
            output,
            dtype,
            output_dtype,
            model.hidden_size * dtype.itemsize,
            model.width(output) * output_dtype.itemsize,
        )
        return found

    def cancel(self, number: int) -> bool:
        """All clients of a bundle have left; whether there is such a bundle."""
        request = self._requests.get(number)
        if request is not None:
            self._batcher.cancel(request)
        return request is not None

    def _ended(self, number: int, room: Room, future: asyncio.Future[Answer]) -> None:
        error = future.exception()
        if self._requests.pop(number, None) is None:
            # The front end has gone.
            return
        if error is not None:
            failed = Record(Kind.FAILED, request=number, text=pack_error(error))
            if room.busy and isinstance(error, Cancelled):
                # What is heard of a bundle frees its room, which the engine still uses.
                room.freed = partial(self._say, failed)
            else:
                self._say(failed)
            return
        answer = future.result()
        self._say(
            Record(
                Kind.DONE,
                request=number,
                nbytes=answer.data.nbytes,
                tokens=answer.batch_tokens,
                first_s=answer.queue_s,
                second_s=answer.execute_s,
                text=answer.kernel.encode(),
            )
        )
