"""The page at `/`: one document that shows `/metrics` live, for people without a dashboard.

It holds no state here: the browser asks for `/metrics` and keeps the history. The files of
`service/page` go out as one document, so that it also works where only this address is reachable.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.errors import NotFound

FOLDER = Path(__file__).parents[1] / "page"
_LINKED = re.compile(
    r'<link rel="stylesheet" href="(?P<style>\w+\.css)">'
    r'|<script src="(?P<script>\w+\.js)"></script>'
)
_COMMON = {
    "x-content-type-options": "nosniff",
    # Kept, but never shown without asking: the next version of the service brings its own.
    "cache-control": "no-cache",
}


def page_router() -> APIRouter:
    """`/` and the README that it links to."""
    html, policy = assemble(FOLDER)
    body = html.encode()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        **_COMMON,
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "etag": etag,
    }

    async def page(request: Request) -> Response:
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="text/html", headers=headers)

    async def readme(_: Request) -> Response:
        return Response(readme_text(), media_type="text/plain", headers=_COMMON)

    # Starlette's own routes: they answer HEAD too, and stay out of the API's description.
    routes = [Route("/", page, methods=["GET"]), Route("/readme", readme, methods=["GET"])]
    return APIRouter(routes=list(routes))


def assemble(folder: Path) -> tuple[str, str]:
    """index.html with its styles and scripts inside, and the policy that allows just these.

    Returns:
        (html, value of Content-Security-Policy).
    """
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inline(found: re.Match[str]) -> str:
        tag = found.lastgroup or ""
        text = (folder / found[tag]).read_text(encoding="utf-8")
        digest = hashlib.sha256(text.encode()).digest()
        hashes[tag].append(f"'sha256-{base64.b64encode(digest).decode()}'")
        return f"<{tag}>{text}</{tag}>"

    html = _LINKED.sub(inline, (folder / "index.html").read_text(encoding="utf-8"))
    policy = {
        "default-src": ["'none'"],
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "connect-src": ["'self'"],
        # The empty icon, without which browsers ask for /favicon.ico.
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
    return html, "; ".join(f"{name} {' '.join(values)}" for name, values in policy.items())


def readme_text() -> str:
    """The README as it was installed with the package, in Markdown.

    Raises:
        NotFound: the package was not installed, only its files are here.
    """
    try:
        metadata = importlib.metadata.metadata("tilemlp")
    except importlib.metadata.PackageNotFoundError:
        raise NotFound("/readme: must be installed with the package, is not") from None
    return str(metadata.get_payload())  # type: ignore[attr-defined]
