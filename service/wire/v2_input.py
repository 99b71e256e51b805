"""The input tensor of a v2 infer request: binary, in its JSON, or in shared memory."""

from __future__ import annotations

import math

from service.engine.base import DType
from service.errors import InvalidRequest
from service.wire.json_text import flatten_numbers
from service.wire.quoting import quote
from service.wire.raw import decode_raw
from service.wire.tensor import WireTensor, validate_extents, validate_width
from service.wire.v2_fields import Object, member, only_entry, parameters_of, window_of
from service.wire.window import Window

INPUT = "x"

DTYPES = {"BF16": DType.BF16, "FP16": DType.FP16, "FP32": DType.FP32}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


def decode_input(
    header: Object, binary: memoryview, hidden_size: int
) -> tuple[WireTensor, Window | None]:
    """Read the one input, `x`.

    Args:
        header: The request's JSON.
        binary: What follows it in the body.
        hidden_size: Width of a row.

    Returns:
        The tensor, and where its data lies in shared memory; it has none of its own then.

    Raises:
        InvalidRequest: name, datatype, shape, data or sizes do not fit together.
    """
    fields = only_entry(header, "inputs")
    if fields is None:
        raise InvalidRequest(f"inputs: must have one entry, {INPUT!r}, has none")
    name = member(fields, "name", str, "inputs[0].")
    if name != INPUT:
        raise InvalidRequest(f"inputs[0].name: must be {INPUT!r}, is {quote(name)}")
    datatype = member(fields, "datatype", str, "inputs[0].")
    dtype = DTYPES.get(datatype or "")
    if dtype is None:
        raise InvalidRequest(
            f"inputs[0].datatype: must be one of {', '.join(DTYPES)}, is {quote(datatype)}"
        )
    shape = _parse_shape(fields, hidden_size)
    parameters = parameters_of(fields, "inputs[0].")
    window = window_of(parameters, "inputs[0].parameters.")
    size = member(parameters, "binary_data_size", int, "inputs[0].")
    data = member(fields, "data", list, "inputs[0].")
    if [window, size, data].count(None) != 2:
        raise InvalidRequest(
            "inputs[0]: must have one of data, parameters.binary_data_size and "
            "parameters.shared_memory_region"
        )
    if size is None and binary.nbytes:
        raise InvalidRequest(f"body: {binary.nbytes} bytes follow the JSON, which has the data")
    if window is not None:
        return _place(window, dtype, shape), window
    if data is not None:
        return _decode_data(data, dtype, shape), None
    if binary.nbytes != size:
        raise InvalidRequest(
            f"inputs[0].binary_data_size: must be the {binary.nbytes} bytes that follow the JSON "
            f"according to Inference-Header-Content-Length, is {quote(size)}"
        )
    return decode_raw(binary, dtype, shape, hidden_size), None


def _parse_shape(fields: Object, hidden_size: int) -> tuple[int, ...]:
    extents = member(fields, "shape", list, "inputs[0].")
    if extents is None:
        raise InvalidRequest("inputs[0].shape: must be an array of integers, is absent")
    shape = tuple(extent for extent in extents if type(extent) is int)
    if len(shape) != len(extents):
        raise InvalidRequest(f"inputs[0].shape: must be an array of integers, is {quote(extents)}")
    validate_extents(shape)
    validate_width(shape, hidden_size)
    return shape


def _place(window: Window, dtype: DType, shape: tuple[int, ...]) -> WireTensor:
    expected = math.prod(shape) * dtype.itemsize
    if window.nbytes != expected:
        raise InvalidRequest(
            f"inputs[0].parameters.shared_memory_byte_size: must be {expected} for "
            f"{DATATYPES[dtype]} of shape {list(shape)}, is {window.nbytes}"
        )
    return WireTensor(b"", dtype, shape)


def _decode_data(data: list[object], dtype: DType, shape: tuple[int, ...]) -> WireTensor:
    """The tensor in `data`, flat or nested like its shape."""
    if dtype is not DType.FP32:
        raise InvalidRequest(
            f"inputs[0].data: must be FP32, is {DATATYPES[dtype]}, which JSON has no form for; "
            f"send it as binary data"
        )
    found, numbers = flatten_numbers(data, "inputs[0].data")
    elements = math.prod(shape)
    if found not in (shape, (elements,)) and not (elements == 0 == math.prod(found)):
        raise InvalidRequest(
            f"inputs[0].data: must be of shape {list(shape)} or {elements} flat numbers, "
            f"is of shape {list(found)}"
        )
    return WireTensor(numbers, dtype, shape)
