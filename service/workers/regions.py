"""Regions of clients' memory as a front end sees them: every call is a REGION record.

Its text is `[call, *arguments]` as JSON, and so is the text that answers it; the engine's process,
which has the regions, makes the call.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from service.shared_memory import CudaRegions, CudaRegionStatus, Regions, RegionStatus

_Ask: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class RemoteRegions:
    """Those of the engine's process, as `service.shared_memory.Regions`.

    Args:
        ask: Sends the text of a REGION record, and waits for the one that answers it.
        serves_cuda: There may be regions of GPU memory too.
    """

    def __init__(self, ask: _Ask, *, serves_cuda: bool) -> None:
        self._ask = ask
        self.cuda: CudaRegions | None = RemoteCudaRegions(ask) if serves_cuda else None

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name."""
        await _call(self._ask, "register", name, key, offset, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        await _call(self._ask, "unregister", name)

    async def status(self, name: str | None) -> list[RegionStatus]:
        """All regions, or the one of that name."""
        return [RegionStatus(*fields) for fields in await _call(self._ask, "status", name)]


class RemoteCudaRegions:
    """Those of GPU memory, as `service.shared_memory.CudaRegions`.

    Args:
        ask: As above.
    """

    def __init__(self, ask: _Ask) -> None:
        self._ask = ask

    async def register(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """Make the first bytes of a handle's memory known by a name."""
        text = b64encode(handle).decode()
        await _call(self._ask, "register_cuda", name, text, device, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        await _call(self._ask, "unregister_cuda", name)

    async def status(self, name: str | None) -> list[CudaRegionStatus]:
        """All regions, or the one of that name."""
        found = await _call(self._ask, "status_cuda", name)
        return [CudaRegionStatus(*fields) for fields in found]


async def _call(ask: _Ask, *call: object) -> Any:  # noqa: ANN401 - as JSON gives it
    return json.loads(await ask(json.dumps(call).encode()))


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
    elif regions.cuda is not None:
        return await _answer_cuda_call(regions.cuda, name, *arguments)
    else:
        raise ValueError(f"region: must be a call, is {name!r}")
    return b"null"


async def _answer_cuda_call(regions: CudaRegions, name: str, *arguments: Any) -> bytes:  # noqa: ANN401 - as JSON gives them
    if name == "register_cuda":
        region, handle, device, nbytes = arguments
        await regions.register(region, b64decode(handle), device, nbytes)
    elif name == "unregister_cuda":
        await regions.unregister(*arguments)
    elif name == "status_cuda":
        return json.dumps(await regions.status(*arguments)).encode()
    else:
        raise ValueError(f"region: must be a call, is {name!r}")
    return b"null"
