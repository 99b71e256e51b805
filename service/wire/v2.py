"""The Open Inference Protocol v2 with the binary tensor extension: infer requests and answers.

A body is a JSON header, directly followed by the bytes of each binary tensor; the HTTP header
`Inference-Header-Content-Length` says where the JSON ends. Or a tensor lies in shared memory, and
does not cross the wire. Models have the input `x` and the
outputs `mlp` and `gated`, of which a request gets one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache

from service.engine.base import Buffer, DType, ModelSpec, Output
from service.errors import InvalidRequest
from service.wire.json_body import validate_json_bytes
from service.wire.json_text import format_rows, load_json
from service.wire.quoting import quote
from service.wire.raw import decode_raw
from service.wire.tensor import WireTensor
from service.wire.v2_fields import Object, member, only_entry, parameters_of, window_of
from service.wire.v2_input import DATATYPES, V2Input, parse_input
from service.wire.window import Window

MODEL_VERSION = "1"
LENGTH_HEADER = "Inference-Header-Content-Length"
_OUTPUTS = {output.value: output for output in Output}
# Headers that are kept once they are parsed, and their longest, so that all stay below 2 MB.
_KEPT = 1024
_KEPT_BYTES = 512


@dataclass(frozen=True, slots=True)
class V2Request:
    """One infer request.

    Attributes:
        tensor: The input, [..., hidden_size]; binary data is a view into the body.
        id: To be repeated in the answer.
        output: What to compute.
        binary_output: Whether the answer's tensor follows the JSON as bytes.
        layer: Which layer; None where the request does not say.
        timeout_us: Longest wait in microseconds; None for the server's default.
        source: Where the input's data lies in shared memory; `tensor` has none then.
        target: Where in shared memory the answer's tensor goes; it is in the answer otherwise.
    """

    tensor: WireTensor
    id: str | None
    output: Output
    binary_output: bool
    layer: int | None
    timeout_us: int | None
    source: Window | None = None
    target: Window | None = None


def parse_header_length(value: str | None, content_length: int | None) -> int | None:
    """Bytes of JSON at the beginning of the body; None: all of it.

    Args:
        value: `Inference-Header-Content-Length`.
        content_length: Bytes of the body, None where not known, such as when it is compressed:
            the header counts decompressed bytes.

    Raises:
        InvalidRequest: not a non-negative integer, or beyond the body.
    """
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise InvalidRequest(f"{LENGTH_HEADER}: must be a non-negative integer, is {quote(value)}")
    length = int(value)
    if content_length is not None:
        _validate_header_length(length, content_length)
    return length


def decode_v2(
    body: memoryview, header_length: int | None, model: ModelSpec, max_json_bytes: int
) -> V2Request:
    """Read an infer request. Unknown parameters and members are ignored, as Triton does.

    Args:
        body: The decompressed body.
        header_length: Bytes of JSON at its beginning; None: all; 0: no JSON, the body is `x` in
            the model's dtype and the answer is binary.
        model: What the request is for.
        max_json_bytes: Longest JSON that is parsed.

    Raises:
        TooLarge: the JSON is longer than max_json_bytes.
        InvalidRequest: anything else.
    """
    if header_length == 0:
        tensor = decode_raw(body, model.dtype, None, model.hidden_size)
        return V2Request(tensor, None, Output.MLP, True, None, None)
    if header_length is None:
        header_length = body.nbytes
    _validate_header_length(header_length, body.nbytes)
    validate_json_bytes(header_length, max_json_bytes)
    text = body[:header_length]
    header = _parse_short(bytes(text), model.hidden_size) if header_length <= _KEPT_BYTES else None
    header = header or _parse(text, model.hidden_size)
    return V2Request(
        header.input.tensor(body[header_length:]),
        header.id,
        header.output,
        header.binary_output,
        header.layer,
        header.timeout_us,
        header.input.window,
        header.target,
    )


@dataclass(frozen=True, slots=True)
class _Header:
    """What the JSON of a request says."""

    input: V2Input
    id: str | None
    output: Output
    binary_output: bool
    layer: int | None
    timeout_us: int | None
    target: Window | None


def _parse(text: memoryview, hidden_size: int) -> _Header:
    header = load_json(text)
    if not isinstance(header, dict):
        raise InvalidRequest(f"JSON: must be an object, is {quote(header)}")
    parameters = parameters_of(header, "")
    output, binary_output, target = _select_output(header, parameters)
    return _Header(
        parse_input(header, hidden_size),
        member(header, "id", str, "") or None,
        output,
        binary_output,
        _parse_layer(parameters),
        _parse_timeout(parameters),
        target,
    )


@lru_cache(_KEPT)
def _parse_short(text: bytes, hidden_size: int) -> _Header | None:
    """A header that many of a client's requests may have; None for one that has their data."""
    header = _parse(memoryview(text), hidden_size)
    return header if header.input.data is None else None


def _validate_header_length(length: int, body_bytes: int) -> None:
    if length > body_bytes:
        raise InvalidRequest(
            f"{LENGTH_HEADER}: must be at most the body's {body_bytes} bytes, is {length}"
        )


def _select_output(header: Object, parameters: Object) -> tuple[Output, bool, Window | None]:
    """The output, whether it comes back binary, and where in shared memory it goes if it does not.

    Of the first two, the entry decides, then the request.
    """
    binary = member(parameters, "binary_data_output", bool, "parameters.") or False
    fields = only_entry(header, "outputs")
    if fields is None:
        return Output.MLP, binary, None
    name = member(fields, "name", str, "outputs[0].")
    output = _OUTPUTS.get(name or "")
    if output is None:
        raise InvalidRequest(
            f"outputs[0].name: must be one of {', '.join(_OUTPUTS)}, is {quote(name)}"
        )
    own = parameters_of(fields, "outputs[0].")
    if own.get("classification"):
        raise InvalidRequest("outputs[0].parameters.classification: is not supported")
    asked = member(own, "binary_data", bool, "outputs[0].parameters.")
    target = window_of(own, "outputs[0].parameters.")
    if target is not None:
        if asked:
            raise InvalidRequest(
                "outputs[0].parameters: must have one of binary_data and shared_memory_region"
            )
        return output, False, target
    return output, binary if asked is None else asked, None


def _parse_layer(parameters: Object) -> int | None:
    """`layer` as an integer, or as digits: some clients send every parameter as a string."""
    value = parameters.get("layer")
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        return int(value)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"parameters.layer: must be a non-negative integer, is {quote(value)}")
    return value


def _parse_timeout(parameters: Object) -> int | None:
    """`timeout` in microseconds; 0 is what clients send for none."""
    value = member(parameters, "timeout", int, "parameters.")
    if value is not None and not 0 <= value < 2**63:
        raise InvalidRequest(
            f"parameters.timeout: must be 0 to 2**63 - 1 microseconds, is {quote(value)}"
        )
    return value or None


def answer_dtype(request: V2Request) -> DType:
    """Dtype in which a request is answered: its input's.

    Raises:
        InvalidRequest: the answer would have to be JSON of bf16 or fp16.
    """
    dtype = request.tensor.dtype
    if not request.binary_output and request.target is None and dtype is not DType.FP32:
        raise InvalidRequest(
            f"outputs: must be binary for {DATATYPES[dtype]}, which JSON has no form for; set "
            f"binary_data of the output, or binary_data_output of the request, to true"
        )
    return dtype


def encode_v2(
    request: V2Request, model_name: str, shape: tuple[int, ...], dtype: DType, data: Buffer
) -> tuple[list[Buffer], int | None]:
    """Write the answer, without a copy of binary data.

    Args:
        request: What is answered.
        model_name: Name for the answer.
        shape: [..., width] of the output.
        dtype: Its type, from `answer_dtype`.
        data: Its elements; not looked at where they go to shared memory.

    Returns:
        Chunks of the body, and the length of its JSON for `Inference-Header-Content-Length`;
        None where the body is JSON alone. An empty binary tensor has the length too: clients
        look for it as soon as an output has a binary_data_size.
    """
    length = math.prod(shape) * dtype.itemsize
    if request.target is not None:
        content = f'"parameters":{_place(request.target, length)}'
    elif request.binary_output:
        content = f'"parameters":{{"binary_data_size":{length}}}'
    else:
        rows = format_rows(data, shape[-1]) if length else ()
        content = f'"data":[{",".join(rows)}]'
    ident = "" if request.id is None else f'"id":{json.dumps(request.id)},'
    header = (
        f'{{"model_name":{json.dumps(model_name)},"model_version":"{MODEL_VERSION}",{ident}'
        f'"outputs":[{{"name":"{request.output.value}","datatype":"{DATATYPES[dtype]}",'
        f'"shape":{list(shape)},{content}}}]}}'
    ).encode()
    if not request.binary_output:
        return [header], None
    return [header, data] if length else [header], len(header)


def _place(target: Window, length: int) -> str:
    """What an output in shared memory says of itself, with the bytes that were written."""
    return (
        f'{{"shared_memory_region":{json.dumps(target.region)},'
        f'"shared_memory_offset":{target.offset},"shared_memory_byte_size":{length}}}'
    )
