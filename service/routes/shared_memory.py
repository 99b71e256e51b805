"""The Open Inference Protocol's shared memory extensions: regions are registered here."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any, Protocol, TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from service.errors import InvalidRequest, NotFound
from service.front import Front
from service.routes.body import parse_content_length, receive_into
from service.shared_memory import CudaRegions, Regions
from service.wire.json_text import load_json
from service.wire.quoting import quote
from service.wire.v2_fields import Object, member, validate_region_name

# A region's name, a key or handle, two numbers.
_LONGEST_BODY_BYTES = 4096
_SYSTEM = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
# Of a cudaIpcMemHandle_t.
_HANDLE_BYTES = 64

_Shown: TypeAlias = list[dict[str, Any]]


class _Kind(Protocol):
    """One kind of shared memory, as JSON speaks of it."""

    async def register(self, name: str, fields: Object) -> None:
        """May raise InvalidRequest."""

    async def unregister(self, name: str | None) -> None:
        """One region or all."""

    async def status(self, name: str | None) -> _Shown:
        """One region or all; may raise NotFound."""


class _System:
    """POSIX shared memory objects."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self.unregister = regions.unregister

    async def register(self, name: str, fields: Object) -> None:
        key = member(fields, "key", str, "")
        nbytes = member(fields, "byte_size", int, "")
        if key is None or nbytes is None:
            raise InvalidRequest("key, byte_size: must be given")
        await self._regions.register(name, key, member(fields, "offset", int, "") or 0, nbytes)

    async def status(self, name: str | None) -> _Shown:
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.nbytes}
            for one in await self._regions.status(name)
        ]


class _Cuda:
    """Memory of the engine's GPU, by CUDA's handles."""

    def __init__(self, regions: CudaRegions) -> None:
        self._regions = regions
        self.unregister = regions.unregister

    async def register(self, name: str, fields: Object) -> None:
        device = member(fields, "device_id", int, "")
        nbytes = member(fields, "byte_size", int, "")
        if device is None or nbytes is None:
            raise InvalidRequest("raw_handle, device_id, byte_size: must be given")
        await self._regions.register(name, _handle_in(fields), device, nbytes)

    async def status(self, name: str | None) -> _Shown:
        return [
            {"name": one.name, "device_id": one.device, "byte_size": one.nbytes}
            for one in await self._regions.status(name)
        ]


def shared_memory_router(front: Front) -> APIRouter:
    """Register, unregister and show regions; where that is not allowed or served, say so."""
    router = APIRouter()
    regions, timeout_s = front.regions, front.settings.receive_timeout_s
    if regions is None:
        sentence = (
            "shared memory: is not allowed; client_shared_memory (MLP_CLIENT_SHARED_MEMORY) "
            "allows it"
        )
        _refuse(router, _SYSTEM, sentence)
        _refuse(router, _CUDA, sentence)
        return router
    _add_routes(router, _SYSTEM, _System(regions), timeout_s)
    if regions.cuda is None:
        _refuse(
            router,
            _CUDA,
            f"CUDA shared memory: needs the fused engine on one GPU, this is {front.backend} on "
            f"{front.device}; system shared memory is served",
        )
    else:
        _add_routes(router, _CUDA, _Cuda(regions.cuda), timeout_s)
    return router


def _add_routes(router: APIRouter, prefix: str, kind: _Kind, timeout_s: float) -> None:
    @router.get(f"{prefix}/status", summary="All regions of shared memory")
    async def all_regions() -> _Shown:
        return await kind.status(None)

    @router.post(f"{prefix}/unregister", summary="Forget all regions")
    async def forget_all() -> JSONResponse:
        await kind.unregister(None)
        return JSONResponse({})

    # Names may hold slashes: clients send them quoted, and servers hand paths on unquoted.
    one = f"{prefix}/region/{{region:path}}"

    @router.get(f"{one}/status", summary="One region of shared memory")
    async def one_region(region: str) -> _Shown:
        validate_region_name(region, "region")
        return await kind.status(region)

    @router.post(f"{one}/unregister", summary="Forget a region; none of that name is no error")
    async def forget(region: str) -> JSONResponse:
        validate_region_name(region, "region")
        await kind.unregister(region)
        return JSONResponse({})

    @router.post(f"{one}/register", summary="Name a stretch of memory that the client shares")
    async def register(region: str, request: Request) -> JSONResponse:
        validate_region_name(region, "region")
        await kind.register(region, await _read_object(request, timeout_s))
        return JSONResponse({})


def _refuse(router: APIRouter, prefix: str, sentence: str) -> None:
    @router.api_route(f"{prefix}/{{rest:path}}", methods=["GET", "POST"], include_in_schema=False)
    async def refuse(rest: str) -> None:  # noqa: ARG001 - every path below
        raise NotFound(sentence)


def _handle_in(fields: Object) -> bytes:
    """The bytes of `raw_handle`."""
    text = member(member(fields, "raw_handle", dict, "") or {}, "b64", str, "raw_handle.")
    if text is None:
        raise InvalidRequest("raw_handle.b64: must be given")
    try:
        handle = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        handle = b""
    if len(handle) != _HANDLE_BYTES:
        raise InvalidRequest(
            f"raw_handle.b64: must be the {_HANDLE_BYTES} bytes of a CUDA IPC handle in base64, is "
            f"{quote(text)}"
        )
    return handle


async def _read_object(request: Request, timeout_s: float) -> dict[str, object]:
    # Not FastAPI's: Triton's clients send no Content-Type, and its size must be bounded.
    length = parse_content_length(dict(request.scope["headers"]).get(b"content-length"))
    if length is None or length > _LONGEST_BODY_BYTES:
        raise InvalidRequest(
            f"Content-Length: must be given and at most {_LONGEST_BODY_BYTES}, is "
            f"{'absent' if length is None else length}"
        )
    body = memoryview(bytearray(length))
    received = await receive_into(request.receive, body, timeout_s)
    fields = load_json(body[:received])
    if not isinstance(fields, dict):
        raise InvalidRequest("JSON: must be an object that describes a region")
    return fields
