"""The API key."""

from __future__ import annotations

import hmac

from service.config import Settings
from service.errors import Unauthorized
from service.routes.replies import Headers


def expected_key(settings: Settings) -> bytes | None:
    """The key that clients have to send; None where everybody may."""
    return None if settings.api_key is None else settings.api_key.get_secret_value().encode()


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
