"""Who may send a body at all: the bounds on what is admitted and not yet running.

Decided from the headers, before a byte of the body is read, so that an overloaded service spends
nothing on what it refuses. What a request holds is a Lease: budget until the engine takes it up,
and an arena slot until it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.errors import QueueFull


class Slot(Protocol):
    """Memory for a body.

    Attributes:
        view: Writable, exactly as long as was asked for.
    """

    view: memoryview

    def release(self) -> None:
        """Give it back; safe to call again."""


class Slots(Protocol):
    """Where slots come from: batching.arena.Arena, or batching.blocks.Blocks."""

    def acquire(self, nbytes: int) -> Slot:
        """A slot for nbytes; may raise QueueFull."""


class Admission:
    """The ledger of requests, tokens and bytes that were admitted and are not yet running."""

    def __init__(self, arena: Slots, *, max_queue_tokens: int, max_queue_bytes: int) -> None:
        self._arena = arena
        self._max_tokens = max_queue_tokens
        self._max_bytes = max_queue_bytes
        self._aside_tokens = self._aside_bytes = 0
        self.requests = 0
        self.tokens = 0
        self.bytes = 0

    def set_aside(self, tokens: int, nbytes: int) -> None:
        """Leave so much of the limits to requests that wait elsewhere, not in this ledger."""
        self._aside_tokens, self._aside_bytes = tokens, nbytes

    def admit(self, tokens: int, nbytes: int, *, slot_bytes: int | None = None) -> Lease:
        """Reserve room for a body of nbytes with `tokens` rows; both may be upper bounds.

        Args:
            tokens: Rows.
            nbytes: Bytes of the body.
            slot_bytes: Bytes that are received into a slot; by default all of it.

        Raises:
            QueueFull: a bound would be passed; nothing is reserved.
        """
        self.reserve(tokens, nbytes)
        try:
            slot = self.acquire(nbytes if slot_bytes is None else slot_bytes)
        except QueueFull:
            self.tokens -= tokens
            self.bytes -= nbytes
            raise
        self.requests += 1
        return Lease(self, slot, tokens, nbytes)

    def admit_into(self, slot: Slot, tokens: int, nbytes: int, requests: int) -> Lease:
        """Reserve room for several requests whose rows lie in a slot that is held already.

        Raises:
            QueueFull: a bound would be passed; nothing is reserved.
        """
        self.reserve(tokens, nbytes)
        self.requests += requests
        return Lease(self, slot, tokens, nbytes, requests)

    def acquire(self, nbytes: int) -> Slot:
        """A slot alone; may raise QueueFull."""
        return self._arena.acquire(nbytes)

    def reserve(self, tokens: int, nbytes: int) -> None:
        """Add to what is held.

        Raises:
            QueueFull: a bound would be passed; nothing is reserved.
        """
        if self.tokens + tokens > self._max_tokens - self._aside_tokens:
            raise QueueFull(
                f"queue: {self.tokens} tokens wait and this request may add {tokens}, which "
                f"passes max_queue_tokens {_less(self._max_tokens, self._aside_tokens)}; "
                "try again later"
            )
        if self.bytes + nbytes > self._max_bytes - self._aside_bytes:
            raise QueueFull(
                f"queue: {self.bytes} bytes wait and this request may add {nbytes}, which "
                f"passes max_queue_bytes {_less(self._max_bytes, self._aside_bytes)}; "
                "try again later"
            )
        self.tokens += tokens
        self.bytes += nbytes


class Lease:
    """What one admitted request holds, or several that travel as one.

    The budget goes back when the engine takes the request up (`start`), the slot when nobody
    reads it any more (`release`); each happens once, however often it is asked for.
    """

    __slots__ = ("_admission", "_at_end", "_nbytes", "_queued", "_requests", "_tokens", "slot")

    def __init__(
        self, admission: Admission, slot: Slot, tokens: int, nbytes: int, requests: int = 1
    ) -> None:
        self._admission = admission
        self._at_end: list[Callable[[], None]] = []
        self._tokens = tokens
        self._nbytes = nbytes
        self._requests = requests
        self._queued = True
        self.slot = slot

    def grow(self, tokens: int, nbytes: int) -> None:
        """Hold more, because the body turns out to be larger.

        Raises:
            QueueFull: a bound would be passed; what was held stays held.
        """
        self._admission.reserve(tokens - self._tokens, nbytes - self._nbytes)
        self._tokens, self._nbytes = tokens, nbytes

    def another_slot(self, nbytes: int) -> Slot:
        """A slot besides, which is for the caller to release."""
        return self._admission.acquire(nbytes)

    def exchange_slot(self, nbytes: int) -> None:
        """Hold a slot of another size instead of the body's; its content is undefined.

        Raises:
            QueueFull: there is no such slot; what was held stays held.
        """
        slot = self._admission.acquire(nbytes)
        self.slot.release()
        self.slot = slot

    def at_end(self, callback: Callable[[], None]) -> None:
        """Have it called once, when the engine has nothing to do with the request any more."""
        self._at_end.append(callback)

    def settle(self, tokens: int, nbytes: int) -> None:
        """Correct the estimates once the body is decoded; never up."""
        self._admission.tokens += tokens - self._tokens
        self._admission.bytes += nbytes - self._nbytes
        self._tokens, self._nbytes = tokens, nbytes

    def start(self) -> None:
        """Return the budget: the request waits no longer."""
        if self._queued:
            self._queued = False
            self._admission.requests -= self._requests
            self._admission.tokens -= self._tokens
            self._admission.bytes -= self._nbytes

    def release(self) -> None:
        """Return budget and slot: the request is over."""
        self.start()
        self.slot.release()
        while self._at_end:
            self._at_end.pop()()


def _less(limit: int, aside: int) -> str:
    return f"{limit} less {aside} for small requests" if aside else str(limit)
