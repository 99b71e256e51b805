"""What the headers of a request say about its body and its answer: formats, types, encodings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from service.engine.base import DType
from service.errors import InvalidRequest, NotAcceptable, UnsupportedType
from service.wire.quoting import quote
from service.wire.tensor import validate_extents


class Format(Enum):
    """How a tensor is written in a body, by media type."""

    RAW = "application/octet-stream"
    NPY = "application/x-npy"
    JSON = "application/json"


class Encoding(Enum):
    """Content codings that are understood. `deflate` is the zlib format (RFC 1950)."""

    GZIP = "gzip"
    DEFLATE = "deflate"


_FORMATS = {item.value: item for item in Format}
_DTYPES = {dtype.value: dtype for dtype in DType}
_ENCODINGS = {"gzip": Encoding.GZIP, "x-gzip": Encoding.GZIP, "deflate": Encoding.DEFLATE}
_FORMAT_NAMES = ", ".join(_FORMATS)
_DTYPE_NAMES = ", ".join(_DTYPES)

# Entries are client's strings: few and short ones, so that the caches stay below 100 kB.
_CACHED_ENTRIES = 256
_CACHED_CHARACTERS = 160

_QUALITY = re.compile(r"(0(\.[0-9]{0,3})?|1(\.0{0,3})?)\Z")


def parse_content_type(value: str | None) -> Format:
    """Format of a request's body; RAW without the header. Media-type parameters are ignored.

    Raises:
        UnsupportedType: a media type that no codec reads.
    """
    if value is None:
        return Format.RAW
    return _FORMATS.get(value) or _parse_media_type(value)


def _parse_media_type(value: str) -> Format:
    name = value.partition(";")[0].strip().lower()
    if not name:
        return Format.RAW
    if name in _FORMATS:
        return _FORMATS[name]
    hint = ""
    if name == "application/x-www-form-urlencoded":
        hint = " (what curl sends with --data-binary: add -H 'Content-Type: …')"
    raise UnsupportedType(f"Content-Type: must be one of {_FORMAT_NAMES}, is {quote(name)}{hint}")


def parse_accept(
    value: str | None, request_format: Format, request_dtype: DType
) -> tuple[Format, DType]:
    """Format and dtype of the answer: the request's, unless `Accept` says otherwise.

    The parameter `dtype=bf16|fp16|fp32` of a media range picks the dtype. Without it an answer
    keeps the request's, except that JSON is always fp32 and that a raw bf16 request answered as
    npy is widened to fp32, since numpy has no bf16. Among equally good ranges the request's own
    format wins, then the one that stands first.

    Raises:
        NotAcceptable: no range names anything that the service writes.
    """
    if value is None or value == "*/*":
        return request_format, request_dtype
    if len(value) > _CACHED_CHARACTERS:
        return _negotiate(value, request_format, request_dtype)
    return _negotiate_cached(value, request_format, request_dtype)


class _Range(NamedTuple):
    media_type: str
    quality: float
    dtype: str | None


def _negotiate(value: str, request_format: Format, request_dtype: DType) -> tuple[Format, DType]:
    ranges = [item for item in map(_parse_range, value.split(",")) if item is not None]
    if not ranges and not value.strip(" \t,"):
        return request_format, request_dtype
    best: tuple[float, bool] = (0.0, False)
    chosen: tuple[Format, DType] | None = None
    named = {item.media_type for item in ranges}
    for item in ranges:
        for answer in _covered(item.media_type, named):
            dtype = _answer_dtype(answer, item.dtype, request_format, request_dtype)
            rank = (item.quality, answer is request_format)
            if dtype is not None and item.quality > 0 and rank > best:
                best, chosen = rank, (answer, dtype)
    if chosen is None:
        raise NotAcceptable(
            f"Accept: must allow one of {_FORMAT_NAMES}, the first two with dtype one of "
            f"{_DTYPE_NAMES}, is {quote(value)}"
        )
    return chosen


_negotiate_cached = lru_cache(_CACHED_ENTRIES)(_negotiate)


def _parse_range(text: str) -> _Range | None:
    """One media range; None where its quality is not a number as in RFC 9110."""
    media_type, *parameters = (part.strip().lower() for part in text.split(";"))
    values = {
        name.strip(): content.strip().strip('"')
        for name, _, content in (parameter.partition("=") for parameter in parameters)
    }
    quality = values.get("q", "1")
    if not media_type or not _QUALITY.match(quality):
        return None
    return _Range(media_type, float(quality), values.get("dtype"))


def _covered(media_type: str, named: set[str]) -> Iterable[Format]:
    """Formats that a range speaks for: a wildcard leaves those that are named elsewhere alone."""
    if media_type in _FORMATS:
        return (_FORMATS[media_type],)
    wildcard = media_type == "application/*" or (
        media_type == "*/*" and "application/*" not in named
    )
    return [item for item in Format if wildcard and item.value not in named]


def _answer_dtype(
    answer: Format, wanted: str | None, request_format: Format, request_dtype: DType
) -> DType | None:
    """The dtype in which a format answers; None where the wanted one does not exist."""
    if wanted is not None:
        dtype = _DTYPES.get(wanted)
        return None if answer is Format.JSON and dtype is not DType.FP32 else dtype
    if answer is Format.JSON:
        return DType.FP32
    if answer is Format.NPY and request_format is Format.RAW and request_dtype is DType.BF16:
        return DType.FP32
    return request_dtype


def parse_dtype(value: str | None) -> DType:
    """Element type named by `X-Tensor-Dtype`; bf16 without the header.

    Raises:
        InvalidRequest: not a dtype.
    """
    if value is None:
        return DType.BF16
    dtype = _DTYPES.get(value) or _DTYPES.get(value.strip().lower())
    if dtype is None:
        raise InvalidRequest(f"X-Tensor-Dtype: must be one of {_DTYPE_NAMES}, is {quote(value)}")
    return dtype


def parse_shape(value: str) -> tuple[int, ...]:
    """Shape in `X-Tensor-Shape`: `3,896`, or as Python prints it, `[3, 896]` or `(3, 896)`.

    Raises:
        InvalidRequest: not such a list, or extents that `validate_extents` refuses.
    """
    text = value.strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    parts = [part.strip() for part in text.rstrip().removesuffix(",").split(",")]
    # 2**53 has 16 digits: longer numbers need not be converted to be refused.
    if not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in parts):
        raise InvalidRequest(
            f"X-Tensor-Shape: must be like 3,896 with numbers below 2**53, is {quote(value)}"
        )
    shape = tuple(map(int, parts))
    validate_extents(shape)
    return shape


def format_shape(shape: tuple[int, ...]) -> str:
    """A shape as `parse_shape` reads it."""
    return ",".join(map(str, shape))


def parse_content_encoding(value: str | None) -> Encoding | None:
    """How a request's body is compressed; None for not at all.

    Raises:
        UnsupportedType: another coding, or several on top of each other.
    """
    if value is None:
        return None
    name = value.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _ENCODINGS:
        raise UnsupportedType(
            f"Content-Encoding: must be identity, gzip or deflate, is {quote(value)}"
        )
    return _ENCODINGS[name]


def answer_encoding(accept_encoding: str | None) -> Encoding | None:
    """How to compress an answer: only when the client asks for one coding and nothing else.

    HTTP libraries send `gzip, deflate, br` on their own; gzipping every tensor for them would take
    141 ms per 4 MiB of bf16 noise and save a fifth of it.
    """
    if accept_encoding is None:
        return None
    return _ENCODINGS.get(accept_encoding.strip().lower())
