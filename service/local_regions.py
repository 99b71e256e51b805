"""Regions of clients' memory where they are in this process: the calls of HTTP to their table."""

from __future__ import annotations

from service.cuda_region import CudaRegion
from service.shared_memory import CudaRegions, CudaRegionStatus, RegionStatus, RegionTable
from service.shared_region import Region


class LocalRegions:
    """Those of a table in this process, as `Regions`."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table
        self.cuda: CudaRegions | None = None
        if table.opens_device_memory:
            self.cuda = LocalCudaRegions(table)

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Make an object's bytes from offset on known by a name."""
        await self._table.register(name, key, offset, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        self._table.unregister(Region, name)

    async def status(self, name: str | None) -> list[RegionStatus]:
        """All regions, or the one of that name."""
        return [
            RegionStatus(region.name, region.key, region.offset, region.nbytes)
            for region in self._table.status(Region, name)
        ]


class LocalCudaRegions:
    """Those of a table in this process, as `CudaRegions`."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table

    async def register(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """Make the first bytes of a handle's memory known by a name."""
        await self._table.register_cuda(name, handle, device, nbytes)

    async def unregister(self, name: str | None) -> None:
        """Forget a region, or all of them."""
        for region in self._table.unregister(CudaRegion, name):
            await region.closed()

    async def status(self, name: str | None) -> list[CudaRegionStatus]:
        """All regions, or the one of that name."""
        return [
            CudaRegionStatus(region.name, region.device, region.nbytes)
            for region in self._table.status(CudaRegion, name)
        ]
