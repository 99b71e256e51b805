"""Regions of clients' memory as a front end sees them: every call is a REGION record.

Its text is `[call, *arguments]` as JSON, and so is the text that answers it; the engine's process,
which has the regions, makes the call.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from service.shared_memory import Regions, RegionStatus


class RemoteRegions:
    """Those of the engine's process, as `service.shared_memory.Regions`.

    Args:
        ask: Sends the text of a REGION record, and waits for the one that answers it.
    """

    def __init__(self, ask: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._ask = ask

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name."""
        await self._call("register", name, key, offset, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        await self._call("unregister", name)

    async def status(self, name: str | None) -> list[RegionStatus]:
        """All regions, or the one of that name."""
        return [RegionStatus(*fields) for fields in await self._call("status", name)]

    async def _call(self, *call: object) -> Any:  # noqa: ANN401 - as JSON gives it
        return json.loads(await self._ask(json.dumps(call).encode()))


async def answer_call(regions: Regions, text: bytes) -> bytes:
    """Make the call of a REGION record; returns the text of the answer.

    Raises:
        ServiceError: as the call does.
        ValueError: there is no such call.
    """
    name, *arguments = json.loads(text)
    if name == "register":
        await regions.register(*arguments)
    elif name == "unregister":
        await regions.unregister(*arguments)
    elif name == "status":
        return json.dumps(await regions.status(*arguments)).encode()
    else:
        raise ValueError(f"region: must be a call, is {name!r}")
    return b"null"
