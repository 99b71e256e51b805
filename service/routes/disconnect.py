"""Noticing that a client has left while its answer is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive

# A request that is answered sooner needs no look-out for its client leaving.
_WATCH_AFTER_S = 0.002


class DisconnectWatch:
    """Calls back when the client leaves; starts to look only once the wait is long enough."""

    def __init__(self, receive: Receive, left: Callable[[], None]) -> None:
        self._receive = receive
        self._left = left
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def stop(self) -> None:
        """The request is over."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()
