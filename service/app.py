"""The ASGI application: routes, error form and documentation around one runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from service import __version__
from service.errors import ServiceError
from service.routes.health import health_router
from service.routes.inference_v2 import infer_endpoint, v2_router
from service.routes.mlp import mlp_endpoint
from service.routes.openapi import tensor_paths
from service.routes.replies import error_body, error_headers
from service.runtime import Runtime

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(runtime: Runtime) -> FastAPI:
    """The application that serves `runtime`, whose life it shares."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        yield
        await runtime.stop()

    app = FastAPI(
        title="tilemlp",
        version=__version__,
        summary="SwiGLU MLPs of LLMs, resident on a GPU and served over HTTP.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    infer = infer_endpoint(runtime)
    # First, because routes are matched in order and these carry the traffic.
    app.router.routes[:0] = [
        Route("/mlp", mlp_endpoint(runtime), methods=["POST"]),
        Route("/v2/models/{model}/infer", infer, methods=["POST"]),
        Route("/v2/models/{model}/versions/{version}/infer", infer, methods=["POST"]),
    ]
    app.include_router(health_router(runtime))
    app.include_router(v2_router(runtime))
    _add_error_handlers(app)
    _add_documentation(app, runtime)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Every error has the same form, also those of the frameworks."""

    @app.exception_handler(ServiceError)
    async def service_error(_: Request, error: ServiceError) -> JSONResponse:
        return JSONResponse(
            error_body(str(error), error.code), error.status, headers=error_headers(error)
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return JSONResponse(error_body(message, code), error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        return JSONResponse(error_body(f"{name}: {first['msg']}", "invalid"), 400)

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        # The server logs the traceback; the client learns only what kind of bug it met.
        return JSONResponse(
            error_body(f"internal error: {type(error).__name__}", ServiceError.code), 500
        )


def _add_documentation(app: FastAPI, runtime: Runtime) -> None:
    """Add the tensor routes, which FastAPI cannot describe, to its OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["paths"].update(tensor_paths(runtime.model))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
