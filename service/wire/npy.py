"""`application/x-npy`: what numpy.save writes, read without a copy and without unpickling.

The format is numpy's NEP 1: magic, version, header length, a Python literal, the data.
"""

from __future__ import annotations

import ast
import math
from functools import lru_cache
from typing import NamedTuple

from service.engine.base import Buffer, DType
from service.errors import InvalidRequest
from service.wire.quoting import quote
from service.wire.tensor import WireTensor, validate_extents, validate_width

_MAGIC = b"\x93NUMPY"
# Bytes before the header, bytes of its length field, its text encoding, by format version.
_LAYOUTS = {(1, 0): (10, 2, "latin-1"), (2, 0): (12, 4, "latin-1"), (3, 0): (12, 4, "utf-8")}
# numpy pads a header for 8 dimensions to 192 bytes; evaluating a long literal is not harmless.
_MAX_HEADER_BYTES = 4096
_ALIGNMENT = 64

# numpy knows the bfloat16 of ml_dtypes (and JAX) only as two opaque bytes: `<V2` is what
# numpy.save writes for it, `|V2` after a load and a second save.
_DTYPES = {"<f4": DType.FP32, "<f2": DType.FP16, "<V2": DType.BF16, "|V2": DType.BF16}
_DESCRS = {DType.FP32: "<f4", DType.FP16: "<f2", DType.BF16: "<V2"}


class _Header(NamedTuple):
    descr: str
    shape: tuple[int, ...]


def decode_npy(body: memoryview, declared: DType | None, hidden_size: int) -> WireTensor:
    """View the data of an .npy body, versions 1.0 to 3.0, C order, without a copy.

    Args:
        body: The file. Its data part is as aligned as the body plus the header's length, which
            numpy makes a multiple of 64.
        declared: `X-Tensor-Dtype` where the client sent it: has to agree, and makes `<u2` bf16.
        hidden_size: Width of a row.

    Returns:
        A tensor whose data is a view into body.

    Raises:
        InvalidRequest: not such a file; the sentence says how to convert the array.
    """
    start, text = _split(body)
    header = _parse_header(text)
    dtype = _select_dtype(header.descr, declared)
    validate_width(header.shape, hidden_size)
    expected = math.prod(header.shape) * dtype.itemsize
    if body.nbytes - start != expected:
        raise InvalidRequest(
            f"npy: must have {expected} bytes of data for {dtype.value} of shape "
            f"{list(header.shape)}, has {body.nbytes - start}"
        )
    return WireTensor(body[start:], dtype, header.shape)


def encode_npy(tensor: WireTensor) -> list[Buffer]:
    """Header of version 1.0 and data, not copied. bf16 as ml_dtypes writes it (`<V2`)."""
    literal = (
        f"{{'descr': '{_DESCRS[tensor.dtype]}', 'fortran_order': False, 'shape': {tensor.shape}, }}"
    )
    prefix = len(_MAGIC) + 4
    padding = -(prefix + len(literal) + 1) % _ALIGNMENT
    text = f"{literal}{' ' * padding}\n".encode("latin-1")
    return [_MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text, tensor.data]


def _split(body: memoryview) -> tuple[int, str]:
    """Offset of the data and the header's text."""
    if bytes(body[:6]) != _MAGIC:
        raise InvalidRequest("npy: must begin with the magic \\x93NUMPY; write it with numpy.save")
    version = (body[6], body[7]) if body.nbytes >= 8 else None
    if version is not None and version not in _LAYOUTS:
        raise InvalidRequest(f"npy: version must be 1.0, 2.0 or 3.0, is {version[0]}.{version[1]}")
    if version is None or body.nbytes < _LAYOUTS[version][0]:
        raise InvalidRequest(f"npy: truncated, {body.nbytes} bytes end within the header")
    prefix, width, encoding = _LAYOUTS[version]
    length = int.from_bytes(body[prefix - width : prefix], "little")
    if length > _MAX_HEADER_BYTES:
        raise InvalidRequest(f"npy: header must be at most {_MAX_HEADER_BYTES} bytes, is {length}")
    if body.nbytes < prefix + length:
        raise InvalidRequest(f"npy: truncated, {body.nbytes} bytes end within the header")
    try:
        return prefix + length, str(body[prefix : prefix + length], encoding)
    except UnicodeDecodeError:
        raise InvalidRequest("npy: header must be UTF-8") from None


@lru_cache(256)
def _parse_header(text: str) -> _Header:
    try:
        fields = ast.literal_eval(text.strip())
    # The documented set of literal_eval; of its memory and depth the cap above takes care.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InvalidRequest(f"npy: header must be a literal, is {quote(text)}") from None
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise InvalidRequest(
            f"npy: header must have descr, fortran_order and shape, is {quote(text)}"
        )
    descr, shape = fields["descr"], fields["shape"]
    if not isinstance(descr, str):
        raise InvalidRequest(
            "npy: structured arrays are not read; send one array of float32, float16 or bfloat16"
        )
    if not isinstance(shape, tuple) or not all(type(extent) is int for extent in shape):
        raise InvalidRequest(f"npy: shape must be a tuple of integers, is {quote(shape)}")
    if fields["fortran_order"] is not False:
        raise InvalidRequest("npy: must be in C order; convert with numpy.ascontiguousarray(x)")
    if not shape:
        raise InvalidRequest("npy: a 0-d array has no rows; send x.reshape(-1, hidden_size)")
    validate_extents(shape)
    return _Header(descr, shape)


def _select_dtype(descr: str, declared: DType | None) -> DType:
    if descr == "<u2" and declared is DType.BF16:
        return DType.BF16
    dtype = _DTYPES.get(descr)
    if dtype is None:
        raise InvalidRequest(f"npy: dtype {quote(descr)} is not read; {_advice(descr)}")
    if declared is not None and declared is not dtype:
        raise InvalidRequest(
            f"X-Tensor-Dtype: must be the file's dtype {dtype.value} or absent, is {declared.value}"
        )
    return dtype


def _advice(descr: str) -> str:
    if descr == "<u2":
        return "if these are bf16 bits, say so with X-Tensor-Dtype: bf16"
    if "O" in descr:
        return "object arrays are pickles and never loaded; convert with .astype(np.float32)"
    if descr.startswith(">"):
        return f"it is big-endian; convert with .astype('<{quote(descr[1:])[1:-1]}')"
    return "convert with .astype(np.float32), or send float16 or ml_dtypes.bfloat16"
