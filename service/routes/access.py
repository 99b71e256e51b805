"""The API key."""

from __future__ import annotations

import hmac

from service.errors import Unauthorized
from service.routes.replies import Headers


def require_key(api_key: bytes | None, headers: Headers) -> None:
    """Check `Authorization: Bearer <key>`.

    Raises:
        Unauthorized: a key is set and the header is missing or wrong; the value is not repeated.
    """
    if api_key is None:
        return
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given, api_key):
        raise Unauthorized("Authorization: must be 'Bearer <key>' with the key of MLP_API_KEY")
