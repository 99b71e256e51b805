"""The input tensor of a v2 infer request: binary, in its JSON, or in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class V2Input:
    """The input as the JSON says: its data lies there, behind it in the body, or in shared memory.

    Attributes:
        shape: [..., hidden_size].
        binary_bytes: Of the data behind the JSON.
        window: Where in shared memory it lies.
        data: In the JSON, flat or nested.
    """

    dtype: DType
    shape: tuple[int, ...]
    binary_bytes: int | None
    window: Window | None
    data: list[object] | None

    def tensor(self, binary: memoryview) -> WireTensor:
        """The tensor, without data of its own where that is in shared memory.

        Args:
            binary: What follows the JSON in the body.

        Raises:
            InvalidRequest: that is not what the JSON says, or the data is not as the shape says.
        """
        if self.binary_bytes is None and binary.nbytes:
            raise InvalidRequest(f"body: {binary.nbytes} bytes follow the JSON, which has the data")
        if self.window is not None:
            return WireTensor(b"", self.dtype, self.shape)
        if self.data is not None:
            return _decode_data(self.data, self.dtype, self.shape)
        if binary.nbytes != self.binary_bytes:
            raise InvalidRequest(
                f"inputs[0].binary_data_size: must be the {binary.nbytes} bytes that follow the "
                "JSON according to Inference-Header-Content-Length, is "
                f"{quote(self.binary_bytes)}"
            )
        return decode_raw(binary, self.dtype, self.shape, self.shape[-1])


def parse_input(header: Object, hidden_size: int) -> V2Input:
    """Read what the JSON says of the one input, `x`.

    Args:
        header: The request's JSON.
        hidden_size: Width of a row.

    Raises:
        InvalidRequest: name, datatype, shape or sizes do not fit together.
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
    if window is not None:
        _validate_window(window, dtype, shape)
    return V2Input(dtype, shape, size, window, data)


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


def _validate_window(window: Window, dtype: DType, shape: tuple[int, ...]) -> None:
    expected = math.prod(shape) * dtype.itemsize
    if window.nbytes != expected:
        raise InvalidRequest(
            f"inputs[0].parameters.shared_memory_byte_size: must be {expected} for "
            f"{DATATYPES[dtype]} of shape {list(shape)}, is {window.nbytes}"
        )


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
