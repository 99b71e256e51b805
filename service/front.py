"""What HTTP needs of the service behind it, whichever process that runs in.

The routes know this and nothing else. `service.runtime.Runtime` is the service itself, in the same
process; `service.workers.remote.RemoteFront` is a front end's end of the way to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from service.batching.health import Health
from service.batching.request import Answer, Holding, PendingRequest
from service.config import Settings
from service.counts import FrontCounts
from service.engine.base import ModelSpec
from service.errors import Unavailable
from service.interruption import Interruption
from service.shared_memory import Regions
from service.wire.window import Window


class InProgress:
    """Counts the requests that are being served, and tells when there are none."""

    __slots__ = ("_idle", "_receiving", "count")

    def __init__(self) -> None:
        self.count = 0
        self._idle = asyncio.Event()
        self._receiving: set[_Receiving] = set()

    def receiving(self) -> AbstractContextManager[None]:
        """To be entered while the body of the task's request is on its way.

        Raises:
            Unavailable: at its end, where `stop_receiving` was called meanwhile.
        """
        return _Receiving(self._receiving)

    def stop_receiving(self) -> None:
        """Refuse the requests whose bodies have not arrived."""
        for one in list(self._receiving):
            one.end(Unavailable("draining: the body did not arrive before the service ends"))

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.ended()

    def begun(self) -> None:
        """One more, until `ended`."""
        self.count += 1

    def add(self, change: int) -> None:
        """So many more, or fewer."""
        self.count += change
        if not self.count:
            self._idle.set()

    def ended(self) -> None:
        """One less."""
        self.add(-1)

    async def none_left(self) -> None:
        """Wait until nothing is being served."""
        while self.count:
            self._idle.clear()
            await self._idle.wait()


class _Receiving(Interruption):
    """A task that waits for a body, among others."""

    __slots__ = ("_all",)

    def __init__(self, everyone: set[_Receiving]) -> None:
        super().__init__()
        self._all = everyone

    def __enter__(self) -> None:
        super().__enter__()
        self._all.add(self)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._all.discard(self)
        super().__exit__(kind, *rest)


class Front(Protocol):
    """One service, as its HTTP side sees it. Everything here is for the event loop's thread.

    Attributes:
        settings: As given by the user.
        model: What is served.
        reason: Why it is this backend on this device.
        health: Phase of the service and the last self-test's verdict.
        counts: Where the requests of this front end are counted.
        in_progress: Entered by every request until its answer is handed to the transport.
        regions: Clients' shared memory; None where it is not allowed.
    """

    settings: Settings
    model: ModelSpec
    reason: str
    health: Health
    in_progress: InProgress
    regions: Regions | None

    @property
    def counts(self) -> FrontCounts:
        """See Attributes."""

    @property
    def backend(self) -> str:
        """Short name of the engine's implementation."""

    @property
    def device(self) -> str:
        """Where the engine runs, for people."""

    async def start(self) -> None:
        """Called once, before the first request."""

    def begin_drain(self) -> None:
        """Accept nothing new, and let nobody wait for company."""

    def give_up(self, error: BaseException) -> None:
        """The time to drain is over: end everything that is in progress with this error."""

    async def stop(self) -> None:
        """Called once, after the last request."""

    async def admit(self, tokens: int, nbytes: int, *, slot_bytes: int | None = None) -> Holding:
        """Reserve budget, and a slot for the body; see batching.admission.Admission.

        Raises:
            QueueFull: there is no room; nothing is reserved.
        """

    async def grow(self, held: Holding, tokens: int, nbytes: int) -> None:
        """Hold more, because the body turns out to be larger.

        Raises:
            QueueFull: there is no room; what was held stays held.
        """

    async def submit(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a validated request; see batching.batcher.Batcher.

        Raises:
            QueueFull: there is no room for its rows or its answer; what it held was returned.
        """

    async def submit_shared(
        self, request: PendingRequest, source: Window | None, target: Window | None
    ) -> asyncio.Future[Answer]:
        """Queue a request whose input or answer lies in a region, which there must be.

        Raises:
            InvalidRequest: a window is wrong; what the request held was returned, as below.
            TooLarge: the input is longer than a body may be.
            QueueFull: there is no room for it.
        """

    async def begin_shared(
        self,
        tokens: int,
        nbytes: int,
        make: Callable[[Holding], PendingRequest],
        source: Window | None,
        target: Window | None,
    ) -> tuple[PendingRequest, asyncio.Future[Answer]]:
        """Both `admit`, without a slot, and `submit_shared`, for a body that has arrived.

        Args:
            tokens: Of the request.
            nbytes: Of its body.
            make: Makes the request of what it holds; must not fail.
            source: As in `submit_shared`.
            target: Likewise.
        """

    def hold_small(self, tokens: int, nbytes: int) -> Holding | None:
        """Budget for a small request that has arrived; None where it has to be asked for."""

    def submit_small(self, request: PendingRequest) -> asyncio.Future[Answer] | None:
        """Queue a validated request with what `hold_small` gave; None as there, nothing is held."""

    def cancel(self, request: PendingRequest) -> None:
        """The client has left."""

    async def scrape(self) -> bytes:
        """The text of /metrics."""

    async def statistics(self) -> dict[str, int]:
        """See metrics.Metrics.statistics."""
