"""The registered regions of clients' shared memory, by name, each in use until released.

Those of the system's memory and those of the GPU's have one set of names, since a request says no
more than a name, but are listed and forgotten apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from service.cuda_region import CudaRegion
from service.engine.base import OpensDeviceMemory, PinsHostMemory
from service.errors import InvalidRequest, NotFound
from service.open_files import open_files_limit
from service.shared_region import Region
from service.wire.window import LONGEST_REGION_NAME, Window

AnyRegion: TypeAlias = Region | CudaRegion
_Kind = TypeVar("_Kind", Region, CudaRegion)

MAX_REGIONS = 1024
# Of the files that the process may have open, the part that regions may hold. The rest is for the
# engine and for connections: without one, nobody could unregister.
_OPEN_FILES_SHARE = 0.25


class RegionStatus(NamedTuple):
    """A registered region, as it was registered."""

    name: str
    key: str
    offset: int
    nbytes: int


class CudaRegionStatus(NamedTuple):
    """A registered region of a GPU's memory, as it was registered."""

    name: str
    device: int
    nbytes: int


class CudaRegions(Protocol):
    """The regions of GPU memory, whichever process they are in; see RegionTable."""

    async def register(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """Make the first bytes of a handle's memory known by a name; may raise InvalidRequest."""

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them; returns when their memory is closed.

        Which is when the last request that uses them has ended: only then may a client free it.
        """

    async def status(self, name: str | None) -> list[CudaRegionStatus]:
        """All regions, or the one of that name; may raise NotFound."""


class Regions(Protocol):
    """The regions of a service, whichever process they are in; see RegionTable.

    Attributes:
        cuda: Those of GPU memory; None where the engine opens none.
    """

    cuda: CudaRegions | None

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
        opener: The engine, if it can use clients' memory on its GPU.
    """

    def __init__(
        self,
        pinner: PinsHostMemory | None,
        max_bytes: int,
        opener: OpensDeviceMemory | None = None,
    ) -> None:
        self._pinner = pinner
        self._max_bytes = max_bytes
        self._opener = opener
        self._regions: dict[str, AnyRegion] = {}
        # Names and bytes that are being registered, which takes a while where memory is pinned.
        self._coming: dict[str, int] = {}

    @property
    def opens_device_memory(self) -> bool:
        """Whether `register_cuda` may be called."""
        return self._opener is not None

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
        self._validate_name(name)
        self._validate_size(offset, nbytes)
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

    async def register_cuda(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """Make the first bytes of a handle's memory known by a name.

        Raises:
            InvalidRequest: the name is taken, or the memory cannot be used.
        """
        assert self._opener is not None
        self._validate_name(name)
        if nbytes < 1:
            raise InvalidRequest(f"byte_size: must be 1 or more, is {nbytes}")
        region = CudaRegion(name, device, nbytes, self._opener)
        # None of this service's memory.
        self._coming[name] = 0
        try:
            await run_to_end(lambda: region.open(handle))
        except BaseException:
            region.release()
            raise
        finally:
            del self._coming[name]
        self._regions[name] = region

    def unregister(self, kind: type[_Kind], name: str | None = None) -> list[_Kind]:
        """Forget all regions of a kind, or one; requests that use it keep it.

        Names that are not known are no error.

        Returns:
            What was forgotten.
        """
        found = [one for one in self._of_kind(kind) if name in (None, one.name)]
        for region in found:
            del self._regions[region.name]
            region.release()
        return found

    def unregister_all(self) -> None:
        """Forget every region."""
        self.unregister(Region)
        self.unregister(CudaRegion)

    def status(self, kind: type[_Kind], name: str | None = None) -> list[_Kind]:
        """All regions of a kind, or the one of that name.

        Raises:
            NotFound: there is none of that name.
        """
        regions = self._of_kind(kind)
        if name is None:
            return regions
        found = [region for region in regions if region.name == name]
        if not found:
            raise NotFound(f"shared memory region: must be registered, {name[:80]!r} is not")
        return found

    def use(self, window: Window, where: str) -> AnyRegion:
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

    def _of_kind(self, kind: type[_Kind]) -> list[_Kind]:
        return [region for region in self._regions.values() if isinstance(region, kind)]

    def _validate_name(self, name: str) -> None:
        if not 0 < len(name) <= LONGEST_REGION_NAME:
            raise InvalidRequest(
                f"region: must have 1 to {LONGEST_REGION_NAME} characters, has {len(name)}"
            )
        if name in self._regions or name in self._coming:
            raise InvalidRequest(f"region: must not be registered yet, {name!r} is")
        files = open_files_limit()
        # A region holds its object open; the mapping of one that is pinned does so once more.
        held = int(_OPEN_FILES_SHARE * files) // (1 if self._pinner is None else 2)
        most = min(held, MAX_REGIONS)
        if len(self._regions) + len(self._coming) >= most:
            raise InvalidRequest(
                f"region: at most {most} may be registered where {files} files may be open, they "
                "are"
            )

    def _validate_size(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 1:
            raise InvalidRequest(
                "offset, byte_size: must not be negative, and not without bytes, are "
                f"{offset}, {nbytes}"
            )
        used = sum(region.nbytes for region in self._of_kind(Region)) + sum(self._coming.values())
        left = self._max_bytes - used
        if nbytes > left:
            raise InvalidRequest(
                f"byte_size: must be at most {left}, what is left of the {self._max_bytes} bytes "
                f"for all regions, is {nbytes}"
            )


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
