"""The Open Inference Protocol v2: inference with the binary extension, and its documents."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from service import __version__
from service.batching.request import Answer
from service.errors import NotFound
from service.front import Front
from service.routes.access import expected_key, require_key
from service.routes.health import health_answer
from service.routes.job import SMALLEST_ELEMENT_BYTES, Job
from service.routes.replies import Headers, RawHeaders, Reply, compress, header_text
from service.routes.shared_memory import shared_memory_router
from service.routes.target import resolve_layer, resolve_model
from service.routes.tensor import TensorEndpoint
from service.wire.media import answer_encoding
from service.wire.quoting import quote
from service.wire.v2 import (
    MODEL_VERSION,
    V2Request,
    answer_dtype,
    decode_v2,
    encode_v2,
    parse_header_length,
)
from service.wire.v2_documents import (
    Duration,
    ModelStatistics,
    model_config,
    model_metadata,
    repository_index,
    server_metadata,
    statistics,
)


def infer_endpoint(front: Front) -> TensorEndpoint:
    """The ASGI application behind POST /v2/models/{model}[/versions/{version}]/infer."""

    def read_head(scope: Scope, headers: Headers) -> V2Head:
        _require_model(front, **scope["path_params"])
        return V2Head(headers, front)

    return TensorEndpoint("v2", read_head, front)


class V2Head:
    """Headers of one infer request, and its JSON once it is decoded."""

    __slots__ = ("_answer_encoding", "_front", "_header_length", "_request")

    _request: V2Request

    def __init__(self, headers: Headers, front: Front) -> None:
        self._front = front
        # Counts the decompressed body, so only the decoder can compare it with the length.
        self._header_length = parse_header_length(
            header_text(headers, b"inference-header-content-length"), None
        )
        self._answer_encoding = answer_encoding(header_text(headers, b"accept-encoding"))

    def tokens_at_most(self, content_length: int) -> int:
        """As many rows as the smallest elements would make."""
        return content_length // (self._front.model.hidden_size * SMALLEST_ELEMENT_BYTES)

    def parsed_bytes(self, body_bytes: int) -> int:
        """The JSON header, which is all of the body where its length is not given."""
        return body_bytes if self._header_length is None else self._header_length

    def decode(self, body: memoryview) -> Job:
        """Read JSON header and binary input."""
        model = self._front.model
        request = self._request = decode_v2(
            body, self._header_length, model, self._front.settings.max_json_bytes
        )
        return Job(
            request.tensor,
            resolve_layer(model.layers, request.layer),
            request.output,
            answer_dtype(request),
            None if request.timeout_us is None else request.timeout_us / 1e6,
            request.source,
            request.target,
        )

    def answers_json(self) -> bool:
        """As the request's outputs and parameters say."""
        return not self._request.binary_output and self._request.target is None

    def written_bytes(self, answer_bytes: int) -> int:
        """All of a JSON or compressed answer."""
        as_it_is = not self.answers_json() and self._answer_encoding is None
        return 0 if as_it_is else answer_bytes

    def encode(self, job: Job, answer: Answer, headers: RawHeaders) -> Reply:
        """Write JSON header and binary output."""
        model = self._front.model
        shape = (*job.tensor.shape[:-1], model.width(job.output))
        chunks, header_length = encode_v2(
            self._request, model.name, shape, job.output_dtype, answer.data
        )
        if header_length is None:
            headers.append((b"content-type", b"application/json"))
        else:
            headers.append((b"content-type", b"application/octet-stream"))
            headers.append((b"inference-header-content-length", b"%d" % header_length))
        return Reply(200, headers, compress(chunks, self._answer_encoding, headers))


def v2_router(front: Front) -> APIRouter:
    """The protocol's documents: everything under /v2 but inference."""
    api_key = expected_key(front.settings)

    async def guard(request: Request) -> None:
        require_key(api_key, dict(request.scope["headers"]))

    router = APIRouter(tags=["Open Inference Protocol v2"])

    # `async`, or they would wait for a thread of the pool that a busy service may not have.
    @router.head("/v2/health/live", include_in_schema=False)
    @router.get("/v2/health/live", summary="Is the process able to serve at all?")
    async def live() -> JSONResponse:
        return health_answer(front, "live", front.health.live)

    @router.head("/v2/health/ready", include_in_schema=False)
    @router.get("/v2/health/ready", summary="Are requests accepted?")
    async def ready() -> JSONResponse:
        return health_answer(front, "ready", front.health.ready)

    router.include_router(_documents(front), dependencies=[Depends(guard)])
    router.include_router(shared_memory_router(front), dependencies=[Depends(guard)])
    return router


def _documents(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/v2", summary="Server metadata")
    async def server() -> dict[str, Any]:
        return server_metadata(
            __version__,
            shared_memory=front.regions is not None,
            cuda_shared_memory=front.regions is not None and front.regions.cuda is not None,
            backend=front.backend,
            device=front.device,
            reason=front.reason,
        )

    # Before the routes with {model}, or "stats" would be taken for a model's name.
    @router.get("/v2/models/stats", summary="Statistics of all models")
    async def all_stats() -> dict[str, Any]:
        return await _statistics(front)

    @router.post("/v2/repository/index", summary="Which models there are")
    async def index() -> list[dict[str, Any]]:
        return repository_index([front.model.name], front.health.ready)

    async def metadata(model: str, version: str | None = None) -> dict[str, Any]:
        _require_model(front, model, version)
        return model_metadata(front.model)

    async def config(model: str, version: str | None = None) -> dict[str, Any]:
        _require_model(front, model, version)
        return model_config(front.model)

    async def stats(model: str, version: str | None = None) -> dict[str, Any]:
        _require_model(front, model, version)
        return await _statistics(front)

    async def model_ready(model: str, version: str | None = None) -> JSONResponse:
        _require_model(front, model, version)
        return health_answer(front, "ready", front.health.ready)

    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        router.get(prefix, summary="Model metadata")(metadata)
        router.get(f"{prefix}/config", summary="Model configuration")(config)
        router.get(f"{prefix}/stats", summary="Statistics of one model")(stats)
        router.get(f"{prefix}/ready", summary="Is the model ready?")(model_ready)
    return router


def _require_model(front: Front, model: str, version: str | None = None) -> None:
    resolve_model(front.model.name, model)
    if version is not None and version != MODEL_VERSION:
        raise NotFound(f"version: must be {MODEL_VERSION!r}, is {quote(version)}")


async def _statistics(front: Front) -> dict[str, Any]:
    found = await front.statistics()

    def duration(name: str) -> Duration:
        return Duration(found[name], found.get(f"{name}_ns", 0))

    totals = ModelStatistics(
        last_inference_ms=found["last_inference_ms"],
        inference_count=found["inference"],
        execution_count=found["execution"],
        success=duration("success"),
        fail=duration("fail"),
        queue=duration("queue"),
        compute_input=duration("compute_input"),
        compute_infer=duration("compute_infer"),
        compute_output=duration("compute_output"),
    )
    return statistics([(front.model.name, totals)])
