"""The ASGI application: routes, error form and documentation around one service."""

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
from starlette.types import ASGIApp, Receive, Scope, Send

from service import __version__
from service.errors import ServiceError
from service.front import Front
from service.routes.health import health_router
from service.routes.inference_v2 import infer_endpoint, v2_router
from service.routes.mlp import HEAD_HEADERS, mlp_endpoint
from service.routes.openapi import tensor_paths
from service.routes.page import page_router
from service.routes.replies import error_body, error_headers, internal_error
from service.routes.small import SmallRequests, SmallRoute

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class _App(FastAPI):
    """FastAPI, with a short cut for the routes that carry tensors.

    Attributes:
        takes_small: Takes small requests past ASGI altogether; see service.http_small.
        direct: Endpoints by method and path that are called without passing through middlewares
            and router. That costs 25 µs, a third of what the service itself spends on a small
            request. They are routes all the same: for other methods, other spellings of the path
            and the documentation.
    """

    takes_small: SmallRequests
    direct: dict[tuple[str, str], ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            endpoint = self.direct.get((scope["method"], scope["path"]))
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def create_app(front: Front) -> FastAPI:
    """The application that serves `front`, whose life it shares."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await front.start()
        yield
        await front.stop()

    app = _App(
        title="tilemlp",
        version=__version__,
        summary="SwiGLU MLPs of LLMs, resident on a GPU and served over HTTP.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    mlp, infer = mlp_endpoint(front), infer_endpoint(front)

    async def infer_served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {"model": front.model.name}
        await infer(scope, receive, send)

    app.direct = {
        ("POST", "/mlp"): mlp,
        ("POST", f"/v2/models/{front.model.name}/infer"): infer_served,
    }
    served = f"/v2/models/{front.model.name}/infer".encode()
    app.takes_small = SmallRequests(
        {
            b"/mlp": SmallRoute(mlp, named=HEAD_HEADERS),
            served: SmallRoute(infer, model=front.model.name),
        }
    )
    app.router.routes += [
        Route("/mlp", mlp, methods=["POST"]),
        Route("/v2/models/{model}/infer", infer, methods=["POST"]),
        Route("/v2/models/{model}/versions/{version}/infer", infer, methods=["POST"]),
    ]
    app.include_router(health_router(front))
    app.include_router(v2_router(front))
    app.include_router(page_router())
    _add_error_handlers(app)
    _add_documentation(app, front)
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
        # Not request.url, which is made of the Host header too, whatever that holds.
        message = f"{request.method} {request.scope['path']}: {error.detail}"
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return JSONResponse(error_body(message, code), error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        return JSONResponse(error_body(f"{name}: {first['msg']}", "invalid"), 400)

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        found = internal_error(error)
        return JSONResponse(error_body(str(found), found.code), found.status)


def _add_documentation(app: FastAPI, front: Front) -> None:
    """Add the tensor routes, which FastAPI cannot describe, to its OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["paths"].update(tensor_paths(front.model))
        # FastAPI adds these to every route with a parameter; our errors have another form.
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        document.pop("components", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
