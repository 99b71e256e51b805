"""The Open Inference Protocol's shared memory extensions: regions are registered here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from service.errors import InvalidRequest, NotFound
from service.front import Front
from service.routes.body import parse_content_length, receive_into
from service.shared_memory import Regions, RegionStatus
from service.wire.json_text import load_json
from service.wire.v2_fields import member

# A region's name, a key, two numbers.
_LONGEST_BODY_BYTES = 4096
_SYSTEM = "/v2/systemsharedmemory"


def shared_memory_router(front: Front) -> APIRouter:
    """Register, unregister and show regions; where that is not allowed, say so."""
    router = APIRouter()
    _refuse(
        router,
        "/v2/cudasharedmemory",
        "CUDA shared memory: is not served; system shared memory is, where it is allowed",
    )
    if front.regions is None:
        _refuse(
            router,
            _SYSTEM,
            "shared memory: is not allowed; client_shared_memory (MLP_CLIENT_SHARED_MEMORY) "
            "allows it",
        )
    else:
        _add_routes(router, front.regions, front.settings.receive_timeout_s)
    return router


def _add_routes(router: APIRouter, regions: Regions, timeout_s: float) -> None:
    @router.get(f"{_SYSTEM}/status", summary="All regions of shared memory")
    async def all_regions() -> list[dict[str, Any]]:
        return [_status(region) for region in await regions.status(None)]

    @router.post(f"{_SYSTEM}/unregister", summary="Forget all regions")
    async def forget_all() -> JSONResponse:
        await regions.unregister(None)
        return JSONResponse({})

    # Names may hold slashes: clients send them quoted, and servers hand paths on unquoted.
    one = f"{_SYSTEM}/region/{{region:path}}"

    @router.get(f"{one}/status", summary="One region of shared memory")
    async def one_region(region: str) -> list[dict[str, Any]]:
        return [_status(found) for found in await regions.status(region)]

    @router.post(f"{one}/unregister", summary="Forget a region; none of that name is no error")
    async def forget(region: str) -> JSONResponse:
        await regions.unregister(region)
        return JSONResponse({})

    @router.post(f"{one}/register", summary="Name a stretch of a POSIX shared memory object")
    async def register(region: str, request: Request) -> JSONResponse:
        fields = await _read_object(request, timeout_s)
        key = member(fields, "key", str, "")
        nbytes = member(fields, "byte_size", int, "")
        if key is None or nbytes is None:
            raise InvalidRequest("key, byte_size: must be given")
        await regions.register(region, key, member(fields, "offset", int, "") or 0, nbytes)
        return JSONResponse({})


def _refuse(router: APIRouter, prefix: str, sentence: str) -> None:
    @router.api_route(f"{prefix}/{{rest:path}}", methods=["GET", "POST"], include_in_schema=False)
    async def refuse(rest: str) -> None:  # noqa: ARG001 - every path below
        raise NotFound(sentence)


def _status(region: RegionStatus) -> dict[str, Any]:
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.nbytes,
    }


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
        raise InvalidRequest("JSON: must be an object with key, offset and byte_size")
    return fields
