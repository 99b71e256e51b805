"""Health for supervisors and load balancers, and the metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from service.errors import Unavailable
from service.front import Front
from service.routes.replies import error_body

# Version 0.0.4 of Prometheus's text format.
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


def health_router(front: Front) -> APIRouter:
    """/health/live, /health/ready and /metrics; neither locks nor GPU work on their path."""
    router = APIRouter(tags=["Operation"])

    # Some load balancers probe with HEAD.
    @router.head("/health/live", include_in_schema=False)
    @router.get("/health/live", summary="200 unless only a restart can help")
    async def live() -> JSONResponse:
        return health_answer(front, "live", front.health.live)

    @router.head("/health/ready", include_in_schema=False)
    @router.get("/health/ready", summary="200 while requests are accepted, else 503 and why")
    async def ready() -> JSONResponse:
        return health_answer(front, "ready", front.health.ready)

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(await front.scrape(), media_type=EXPOSITION)

    return router


def health_answer(front: Front, name: str, yes: bool) -> JSONResponse:
    """200, or 503 with the reason; `name` is what was asked: live, ready."""
    if yes:
        return JSONResponse({name: True})
    body = {name: False, **error_body(front.health.reason, Unavailable.code)}
    return JSONResponse(body, status_code=Unavailable.status)
