"""Health for supervisors and load balancers, and the metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from service.metrics import CONTENT_TYPE
from service.routes.replies import error_body
from service.runtime import Runtime


def health_router(runtime: Runtime) -> APIRouter:
    """/health/live, /health/ready and /metrics; neither locks nor GPU work on their path."""
    router = APIRouter(tags=["Operation"])

    def answer(name: str, yes: bool) -> JSONResponse:
        if yes:
            return JSONResponse({name: True})
        return JSONResponse(
            {name: False, **error_body(runtime.health.reason, "unavailable")}, status_code=503
        )

    @router.get("/health/live", summary="200 unless only a restart can help")
    async def live() -> JSONResponse:
        return answer("live", runtime.health.live)

    @router.get("/health/ready", summary="200 while requests are accepted, else 503 and why")
    async def ready() -> JSONResponse:
        return answer("ready", runtime.health.ready)

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(runtime.metrics.render(), media_type=CONTENT_TYPE)

    return router
