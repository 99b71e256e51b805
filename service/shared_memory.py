"""The registered regions of clients' shared memory, by name, each in use until released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from service.engine.base import PinsHostMemory
from service.errors import InvalidRequest, NotFound
from service.shared_region import Region
from service.wire.window import Window

_LONGEST_NAME = 255
# Each holds a file descriptor.
MAX_REGIONS = 1024


class RegionStatus(NamedTuple):
    """A registered region, as it was registered."""

    name: str
    key: str
    offset: int
    nbytes: int


class Regions(Protocol):
    """The regions of a service, whichever process they are in; see RegionTable."""

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name; may raise InvalidRequest."""

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""

    async def status(self, name: str | None) -> list[RegionStatus]:
        """All regions, or the one of that name; may raise NotFound."""


class RegionTable:
    """The regions that are registered.

    Args:
        pinner: The engine, if it can copy from and to clients' memory by itself.
        max_bytes: Of all regions together. Pinning a sparse object, or writing to it, allocates
            its pages on this service's account.
    """

    def __init__(self, pinner: PinsHostMemory | None, max_bytes: int) -> None:
        self._pinner = pinner
        self._max_bytes = max_bytes
        self._regions: dict[str, Region] = {}
        # Names and bytes that are being registered, which takes a while where memory is pinned.
        self._coming: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Regions registered."""
        return len(self._regions)

    @property
    def nbytes(self) -> int:
        """Bytes in all registered regions; those in several count several times."""
        return sum(region.nbytes for region in self._regions.values())

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name.

        Raises:
            InvalidRequest: the name is taken, the bounds make no sense, or the object cannot be
                used.
        """
        self._validate(name, offset, nbytes)
        region = Region(name, key, offset, nbytes)
        pinner = self._pinner
        if pinner is not None:
            self._coming[name] = nbytes
            try:
                # To its end, even if the client leaves: what is pinned must be known.
                await run_to_end(lambda: region.pin(pinner))
            except BaseException:
                region.release()
                raise
            finally:
                del self._coming[name]
        self._regions[name] = region

    def unregister(self, name: str) -> None:
        """Forget a region; requests that use it keep it. Unknown names are no error."""
        region = self._regions.pop(name, None)
        if region is not None:
            region.release()

    def unregister_all(self) -> None:
        """Forget every region."""
        for name in list(self._regions):
            self.unregister(name)

    def status(self, name: str | None = None) -> list[Region]:
        """All regions, or the one of that name.

        Raises:
            NotFound: there is none of that name.
        """
        if name is None:
            return list(self._regions.values())
        if name not in self._regions:
            raise NotFound(f"shared memory region: must be registered, {name[:80]!r} is not")
        return [self._regions[name]]

    def use(self, window: Window, where: str) -> Region:
        """The region of a window, to be released.

        Args:
            window: From a request.
            where: What the window is for, as the prefix of a message: `inputs[0]`.

        Raises:
            InvalidRequest: it is not registered, or the window does not lie in it.
        """
        region = self._regions.get(window.region)
        if region is None:
            raise InvalidRequest(
                f"{where}.parameters.shared_memory_region: must be registered, "
                f"{window.region[:80]!r} is not"
            )
        if window.offset + window.nbytes > region.nbytes:
            raise InvalidRequest(
                f"{where}.parameters.shared_memory_byte_size: must end within the {region.nbytes} "
                f"bytes of region {region.name!r}, ends at {window.offset + window.nbytes}"
            )
        return region.acquire()

    def _validate(self, name: str, offset: int, nbytes: int) -> None:
        if not 0 < len(name) <= _LONGEST_NAME:
            raise InvalidRequest(
                f"region: must have 1 to {_LONGEST_NAME} characters, has {len(name)}"
            )
        if name in self._regions or name in self._coming:
            raise InvalidRequest(f"region: must not be registered yet, {name!r} is")
        if offset < 0 or nbytes < 1:
            raise InvalidRequest(
                "offset, byte_size: must not be negative, and not without bytes, are "
                f"{offset}, {nbytes}"
            )
        if len(self._regions) + len(self._coming) >= MAX_REGIONS:
            raise InvalidRequest(f"region: at most {MAX_REGIONS} may be registered, they are")
        left = self._max_bytes - self.nbytes - sum(self._coming.values())
        if nbytes > left:
            raise InvalidRequest(
                f"byte_size: must be at most {left}, what is left of the {self._max_bytes} bytes "
                f"for all regions, is {nbytes}"
            )


class LocalRegions:
    """Those of a table in this process, as `Regions`."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name."""
        await self._table.register(name, key, offset, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        if name is None:
            self._table.unregister_all()
        else:
            self._table.unregister(name)

    async def status(self, name: str | None) -> list[RegionStatus]:
        """All regions, or the one of that name."""
        return [
            RegionStatus(region.name, region.key, region.offset, region.nbytes)
            for region in self._table.status(name)
        ]


async def run_to_end(work: Callable[[], None]) -> None:
    """Run in a thread, and come back only when it is over, even if cancelled meanwhile."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:  # noqa: PERF203 - as often as it is cancelled
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
