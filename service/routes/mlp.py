"""POST /mlp: activations in, the MLP's answer out, as raw bytes, npy or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.types import Scope

from service.batching.request import Answer
from service.engine.base import Buffer, ModelSpec, Output
from service.errors import InvalidRequest
from service.front import Front
from service.routes.job import SMALLEST_ELEMENT_BYTES, Job
from service.routes.replies import Headers, RawHeaders, Reply, compress, header_text
from service.routes.target import resolve_layer, resolve_model
from service.routes.tensor import TensorEndpoint
from service.wire.json_body import decode_json, encode_json
from service.wire.media import (
    Format,
    answer_encoding,
    format_shape,
    parse_accept,
    parse_content_type,
    parse_dtype,
    parse_shape,
)
from service.wire.npy import decode_npy, encode_npy
from service.wire.quoting import quote
from service.wire.raw import decode_raw, raw_tokens
from service.wire.tensor import WireTensor

# Those that MlpHead reads.
HEAD_HEADERS = (
    b"accept",
    b"accept-encoding",
    b"content-type",
    b"x-request-timeout-ms",
    b"x-tensor-dtype",
    b"x-tensor-shape",
)
_PARAMETERS = ("model", "layer", "output")
# Longer queries are parsed anew each time, so that the cache stays below 1 MB.
_CACHED_BYTES = 256


def mlp_endpoint(front: Front) -> TensorEndpoint:
    """The ASGI application behind POST /mlp."""
    model, max_json_bytes = front.model, front.settings.max_json_bytes

    def read_head(scope: Scope, headers: Headers) -> MlpHead:
        return MlpHead(scope, headers, model, max_json_bytes)

    return TensorEndpoint("mlp", read_head, front)


@dataclass(frozen=True, slots=True)
class Query:
    """The query parameters of /mlp."""

    model: str | None
    layer: int | None
    output: Output


def parse_query(query: bytes) -> Query:
    """Parse `model=&layer=&output=`; clients repeat themselves, so answers are kept.

    Raises:
        InvalidRequest: unknown or repeated parameter, or a value that it cannot have.
    """
    return _parse_query_cached(query) if len(query) <= _CACHED_BYTES else _parse_query(query)


def _parse_query(query: bytes) -> Query:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidRequest("query: each parameter may be given once, one is repeated")
    for name in given:
        if name not in _PARAMETERS:
            raise InvalidRequest(
                f"query: parameters are {', '.join(_PARAMETERS)}, got {quote(name)}"
            )
    layer = given.get("layer") or None
    if layer is not None and not (layer.isascii() and layer.isdigit() and len(layer) <= 6):
        raise InvalidRequest(f"layer: must be a layer number, is {quote(layer)}")
    output = given.get("output") or Output.MLP.value
    try:
        chosen = Output(output)
    except ValueError:
        raise InvalidRequest(f"output: must be mlp or gated, is {quote(output)}") from None
    return Query(given.get("model") or None, None if layer is None else int(layer), chosen)


_parse_query_cached = lru_cache(maxsize=1024)(_parse_query)


class MlpHead:
    """Headers and query of a request to /mlp; requests that share them can share it."""

    __slots__ = (
        "_accept",
        "_answer_encoding",
        "_answer_format",
        "_declared_dtype",
        "_dtype",
        "_format",
        "_layer",
        "_max_json_bytes",
        "_model",
        "_output",
        "_shape",
        "_timeout_s",
    )

    def __init__(
        self, scope: Scope, headers: Headers, model: ModelSpec, max_json_bytes: int
    ) -> None:
        def text(name: bytes) -> str | None:
            return header_text(headers, name)

        query = parse_query(scope["query_string"])
        resolve_model(model.name, query.model)
        self._model = model
        self._max_json_bytes = max_json_bytes
        self._layer = resolve_layer(model.layers, query.layer)
        self._output = query.output
        self._format = parse_content_type(text(b"content-type"))
        dtype = text(b"x-tensor-dtype")
        self._declared_dtype = None if dtype is None else parse_dtype(dtype)
        self._dtype = parse_dtype(dtype)
        shape = text(b"x-tensor-shape")
        self._shape = None if shape is None else parse_shape(shape)
        self._accept = text(b"accept")
        self._answer_format, _ = parse_accept(self._accept, self._format, self._dtype)
        self._answer_encoding = answer_encoding(text(b"accept-encoding"))
        self._timeout_s = parse_timeout_ms(text(b"x-request-timeout-ms"))

    def tokens_at_most(self, content_length: int) -> int:
        """Exact for raw bodies; else as many rows as the smallest elements would make."""
        if self._format is Format.RAW:
            return raw_tokens(content_length, self._dtype, self._model.hidden_size)
        return content_length // (self._model.hidden_size * SMALLEST_ELEMENT_BYTES)

    def parsed_bytes(self, body_bytes: int) -> int:
        """All of a JSON body."""
        return body_bytes if self._format is Format.JSON else 0

    def decode(self, body: memoryview) -> Job:
        """Read the body in the format that Content-Type named."""
        hidden_size = self._model.hidden_size
        if self._format is Format.RAW:
            tensor = decode_raw(body, self._dtype, self._shape, hidden_size)
        elif self._format is Format.NPY:
            tensor = decode_npy(body, self._declared_dtype, hidden_size)
        else:
            tensor = decode_json(body, hidden_size, self._max_json_bytes)
        _, answer_dtype = parse_accept(self._accept, self._format, tensor.dtype)
        return Job(tensor, self._layer, self._output, answer_dtype, self._timeout_s)

    def answers_json(self) -> bool:
        """As Accept says."""
        return self._answer_format is Format.JSON

    def written_bytes(self, answer_bytes: int) -> int:
        """All of a JSON or compressed answer."""
        as_it_is = not self.answers_json() and self._answer_encoding is None
        return 0 if as_it_is else answer_bytes

    def encode(self, job: Job, answer: Answer, headers: RawHeaders) -> Reply:
        """Write the answer in the format that Accept named."""
        shape = (*job.tensor.shape[:-1], self._model.width(job.output))
        tensor = WireTensor(answer.data, job.output_dtype, shape)
        chunks: list[Buffer]
        if self._answer_format is Format.RAW:
            chunks = [answer.data]
        elif self._answer_format is Format.NPY:
            chunks = encode_npy(tensor)
        else:
            chunks = [encode_json(tensor)]
        headers += [
            (b"content-type", self._answer_format.value.encode()),
            (b"x-tensor-shape", format_shape(shape).encode()),
            (b"x-tensor-dtype", job.output_dtype.value.encode()),
        ]
        return Reply(200, headers, compress(chunks, self._answer_encoding, headers))


def parse_timeout_ms(value: str | None) -> float | None:
    """`X-Request-Timeout-Ms` in seconds.

    Raises:
        InvalidRequest: not a positive number.
    """
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 0 < len(value) <= 9 and int(value)):
        raise InvalidRequest(
            "X-Request-Timeout-Ms: must be a positive whole number of milliseconds, "
            f"is {quote(value)}"
        )
    return int(value) / 1e3
