"""The way of a body into the service: budget and room for it, its bytes, and out of compression."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.types import Receive, Scope

from service.batching.request import Holding
from service.front import Front
from service.routes.body import receive_directly, receive_growing, receive_into, too_large
from service.routes.direct import direct_of
from service.routes.job import SMALLEST_ELEMENT_BYTES, Head
from service.wire.compression import Inflation
from service.wire.media import Encoding

# Room for a body whose length is not declared, to begin with; it grows as the body does.
_FIRST_BYTES = 64 << 10


class Intake:
    """Admits and receives bodies for one front."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def admit(
        self, head: Head, content_length: int | None, encoding: Encoding | None
    ) -> Holding:
        """Room for the body, or for its beginning where headers do not tell its size.

        Raises:
            TooLarge: it is announced to be longer than max_body_bytes.
            QueueFull: there is no room for it.
        """
        settings, front = self._front.settings, self._front
        limit = settings.max_body_bytes
        if content_length is None:
            return await front.admit(self._rows_in(_FIRST_BYTES), _FIRST_BYTES, slot_bytes=0)
        if content_length > limit:
            raise too_large(limit, str(content_length))
        if encoding is not None:
            return await front.admit(self._rows_in(content_length), content_length)
        # What turns out to hold more rows than a batch is refused after decoding.
        tokens = min(head.tokens_at_most(content_length), settings.max_batch_tokens)
        return await front.admit(tokens, content_length)

    async def receive(
        self, scope: Scope, receive: Receive, lease: Holding, encoding: Encoding | None
    ) -> memoryview:
        """All of the body, as it was before it was compressed.

        Raises:
            TooLarge: it is longer than max_body_bytes.
            QueueFull: there is no room for what it turns out to be.
            ReceiveTimeout: it did not arrive in time.
            Cancelled: the client left.
            InvalidRequest: it is not compressed as its headers say.
        """
        settings = self._front.settings
        limit, timeout_s = settings.max_body_bytes, settings.receive_timeout_s
        view = lease.slot.view
        if view.nbytes:
            direct = direct_of(scope)
            if direct is not None and direct.can_receive(scope, view.nbytes):
                received = await receive_directly(direct, view, timeout_s)
            else:
                received = await receive_into(receive, view, timeout_s)
            body = view[:received]
        else:
            grow = partial(self._grow, lease)
            body = await receive_growing(receive, limit, timeout_s, _FIRST_BYTES, grow)
        if encoding is None:
            return body
        return await self._inflate(Inflation(body, encoding, limit), len(body), lease)

    async def _inflate(self, inflation: Inflation, reserved: int, lease: Holding) -> memoryview:
        """Decompress, and hold as much as comes out before more does."""
        # Into fresh memory: a thread may outlive its cancelled request, and slots are reused.
        grown = inflation.grown
        room = max(reserved, _FIRST_BYTES)
        while not await asyncio.to_thread(inflation.go_on, room):
            room = reserved = min(self._front.settings.max_body_bytes, 2 * len(grown))
            await self._grow(lease, room)
        if len(grown) > reserved:
            await self._grow(lease, len(grown))
        return memoryview(grown)

    async def _grow(self, lease: Holding, nbytes: int) -> None:
        await self._front.grow(lease, self._rows_in(nbytes), nbytes)

    def _rows_in(self, nbytes: int) -> int:
        """Rows that nbytes of any format hold at most, as far as they fit a batch."""
        rows = nbytes // (self._front.model.hidden_size * SMALLEST_ELEMENT_BYTES)
        return min(rows, self._front.settings.max_batch_tokens)
