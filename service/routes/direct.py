"""What our server can do for large bodies and answers, beyond ASGI; see service.http_direct."""

from __future__ import annotations

from typing import Protocol

from starlette.types import Scope


class Direct(Protocol):
    """The connection of a request."""

    def can_receive(self, scope: Scope, nbytes: int) -> bool:
        """Whether `receive_into` is the better way for a body of declared length."""

    async def receive_into(self, view: memoryview) -> int:
        """Receive the body of the request at hand; fewer bytes where the client left."""

    def write_exactly(self) -> None:
        """From now on, a sender waits until the kernel has all that was sent before."""

    def write_ahead(self) -> None:
        """From now on, a sender waits only for a buffer that is full."""

    def abort(self) -> None:
        """Cut the connection."""


def direct_of(scope: Scope) -> Direct | None:
    """What the server offers for large bodies, if it is ours."""
    found: Direct | None = scope.get("extensions", {}).get("tilemlp.direct")
    return found
