"""`application/json`: {"inputs": [[…]]} and {"outputs": [[…]], "shape": […], "dtype": "fp32"}."""

from __future__ import annotations

from service.engine.base import DType
from service.errors import InvalidRequest, TooLarge
from service.wire.json_text import flatten_numbers, format_rows, load_json
from service.wire.quoting import quote
from service.wire.tensor import WireTensor, validate_width


def validate_json_bytes(length: int, max_bytes: int) -> None:
    """Check a JSON text's length before it is parsed.

    Raises:
        TooLarge: more than max_bytes.
    """
    if length > max_bytes:
        raise TooLarge(
            f"JSON: must be at most {max_bytes} bytes (max_json_bytes, MLP_MAX_JSON_BYTES), "
            f"is {length}; binary bodies are smaller and faster"
        )


def decode_json(body: memoryview, hidden_size: int, max_bytes: int) -> WireTensor:
    """Read {"inputs": numbers nested to [..., hidden_size]} as fp32.

    NaN, Infinity and -Infinity are numbers. Decimals beyond fp32 become ±infinity, as in numpy.
    `[]` is a tensor of no rows.

    Raises:
        TooLarge: more than max_bytes.
        InvalidRequest: anything else.
    """
    validate_json_bytes(body.nbytes, max_bytes)
    document = load_json(body)
    if not isinstance(document, dict) or document.keys() != {"inputs"}:
        raise InvalidRequest(
            f'JSON: must be an object with the one key "inputs", is {quote(document)}'
        )
    nested = document["inputs"]
    if not isinstance(nested, list):
        raise InvalidRequest(f"inputs: must be an array of numbers, is {quote(nested)}")
    shape, data = flatten_numbers(nested, "inputs")
    if shape == (0,):
        shape = (0, hidden_size)
    validate_width(shape, hidden_size)
    return WireTensor(data, DType.FP32, shape)


def encode_json(tensor: WireTensor) -> bytes:
    """Write an fp32 tensor; numbers that JSON lacks are the tokens NaN, Infinity and -Infinity.

    `outputs` is nested like the shape, and `[]` where the tensor has no element.

    Raises:
        ValueError: the tensor is not fp32.
    """
    if tensor.dtype is not DType.FP32:
        raise ValueError(f"tensor: must be fp32 to be written as JSON, is {tensor.dtype.value}")
    return f'{{"outputs":{_nest(tensor)},"shape":{list(tensor.shape)},"dtype":"fp32"}}'.encode()


def _nest(tensor: WireTensor) -> str:
    if not len(tensor.data):
        return "[]"
    groups = [f"[{row}]" for row in format_rows(tensor.data, tensor.shape[-1])]
    for extent in reversed(tensor.shape[:-1]):
        groups = [
            f"[{','.join(groups[start : start + extent])}]"
            for start in range(0, len(groups), extent)
        ]
    return groups[0]
