"""What requests hold in the engine's process, as their front end sees it."""

from __future__ import annotations

from collections.abc import Callable


class RemoteSlot:
    """A slot in shared memory, as the engine's process has granted it.

    Attributes:
        offset: Where it begins among the bodies.
        view: Exactly as long as was asked for.
    """

    __slots__ = ("offset", "view")

    def __init__(self, offset: int, view: memoryview) -> None:
        self.offset = offset
        self.view = view


class RemoteHolding:
    """What a request holds in the engine's process.

    Args:
        release: Says that the request of a number needs nothing any more.

    Attributes:
        request: Its number.
        body_bytes: Of the body, once it is decoded.
    """

    __slots__ = ("_mine", "_release", "body_bytes", "request", "slot")

    def __init__(self, request: int, slot: RemoteSlot, release: Callable[[int], None]) -> None:
        self._release = release
        self._mine = True
        self.request = request
        self.body_bytes = 0
        self.slot = slot

    def settle(self, tokens: int, nbytes: int) -> None:
        """Correct the estimates: told when the request is submitted."""
        del tokens
        self.body_bytes = nbytes

    def start(self) -> None:
        """Only the engine's process knows when a request starts."""
        raise NotImplementedError

    def submitted(self) -> None:
        """From now on the engine's process knows when it is over."""
        self._mine = False

    def release(self) -> None:
        """The request ends before it was submitted."""
        if self._mine:
            self._mine = False
            self._release(self.request)
