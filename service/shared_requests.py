"""Requests whose tensors lie in clients' memory: into the batcher, and their answers back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.batching.admission import Lease
from service.batching.batcher import Batcher
from service.batching.request import Answer, PendingRequest
from service.errors import Cancelled
from service.shared_memory import RegionTable
from service.shared_tensors import SharedTensors
from service.wire.window import Window


class SharedRequests:
    """Puts such requests into the batcher; in the engine's process, where the regions are.

    Args:
        regions: Those that are registered.
        batcher: Where requests go.
        moved: Told when bytes went `in` from clients' memory, or `out` to it.
        max_bytes: Of an input.
    """

    def __init__(
        self,
        regions: RegionTable,
        batcher: Batcher,
        moved: Callable[[str, int], None],
        max_bytes: int,
    ) -> None:
        self._regions = regions
        self._batcher = batcher
        self._moved = moved
        self._max_bytes = max_bytes

    async def submit(
        self,
        request: PendingRequest,
        lease: Lease,
        source: Window | None,
        target: Window | None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> asyncio.Future[Answer]:
        """Read the input, and queue the request; its future ends when the answer is in place.

        Args:
            request: Its `data` is that of the body, if the input is there.
            lease: What the request holds; it may be in another's hands by way of `request.lease`.
            source: Where the input lies; None for the body.
            target: Where the answer goes; None for where the request says.
            wanted: Asked when the input was read, whether anybody still waits for an answer.

        Raises:
            InvalidRequest: a window is wrong, or the object is truncated.
            TooLarge: the input is longer than max_bytes.
            QueueFull: a bound of the queue would be passed.
            Cancelled: nobody waits.
                What the request held was returned, in each of these cases.
        """
        shared = SharedTensors(self._regions, self._moved)
        try:
            shared.open(source, target, request.output_nbytes)
            data = await shared.read(lease, request.tokens, request.dtype, self._max_bytes)
            if data is not None:
                request.data = data
            shared.place(lease, request.output_dtype)
            if shared.output is not None:
                request.output_data = shared.output
            if not wanted():
                raise Cancelled("request: the client left while its input was read")
        except BaseException:
            shared.close()
            request.lease.release()
            raise
        return asyncio.ensure_future(_finish(shared, self._batcher.submit(request)))


async def _finish(shared: SharedTensors, future: asyncio.Future[Answer]) -> Answer:
    try:
        answer = await future
        await shared.write(answer.data)
        return answer
    finally:
        shared.close()
