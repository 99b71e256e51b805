"""Requests as they go over the wire, made once and sent many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from service import __version__
from service.engine.base import DType
from service.load.options import Address, LoadOptions, RowMix

# Different bodies per row count: enough that an answer to another request is most likely an answer
# to other rows. At least two, for an exchange to be seen at all, as long as memory allows no more.
_MOST_PER_ROW_COUNT = 8
_LEAST_PER_ROW_COUNT = 2
_BYTES_PER_ROW_COUNT = 64 << 20
# Long enough for a weight of 0.1 % to come out within about a tenth of itself.
_MIX_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True)
class Payload:
    """One request.

    Attributes:
        index: Position among all payloads; names the expected answer.
        rows: Tokens in the body.
        request: Head and body as sent: the body is [rows, hidden_size] of the wire's dtype.
        body_bytes: Length of the body alone.
        model: Served name.
    """

    index: int
    rows: int
    request: bytes
    body_bytes: int
    model: str


def make_payloads(options: LoadOptions, model: str, hidden_size: int) -> tuple[Payload, ...]:
    """Standard-normal bodies for every row count of the options; no two rows are alike."""
    rng = np.random.default_rng(options.seed)
    payloads: list[Payload] = []
    for rows, _ in options.rows:
        row_bytes = hidden_size * options.dtype.itemsize
        affordable = _BYTES_PER_ROW_COUNT // (rows * row_bytes)
        for _ in range(min(_MOST_PER_ROW_COUNT, max(_LEAST_PER_ROW_COUNT, affordable))):
            body = encode(rng.standard_normal((rows, hidden_size), dtype=np.float32), options.dtype)
            request = mlp_head(options, model, len(body)) + body
            payloads.append(Payload(len(payloads), rows, request, len(body), model))
    return tuple(payloads)


def make_mix(payloads: Sequence[Payload], rows: RowMix, seed: int) -> list[Payload]:
    """A long random sequence of payloads, each row count as often as its weight says."""
    weights = dict(rows)
    per_count = {count: sum(p.rows == count for p in payloads) for count in weights}
    chances = np.array([weights[p.rows] / per_count[p.rows] for p in payloads])
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(payloads), size=_MIX_LENGTH, p=chances / chances.sum())
    return [payloads[index] for index in chosen.tolist()]


def mlp_head(options: LoadOptions, model: str, body_bytes: int) -> bytes:
    """Request line and headers of `POST /mlp` for a raw body of that length."""
    query = {"model": model, "output": options.output.value}
    if options.layer is not None:
        query["layer"] = str(options.layer)
    lines = [
        "Content-Type: application/octet-stream",
        f"X-Tensor-Dtype: {options.dtype.value}",
        f"Content-Length: {body_bytes}",
    ]
    target = f"/mlp?{urlencode(query)}"
    return make_head("POST", target, options.address, options.api_key, lines)


def make_head(
    method: str, target: str, address: Address, api_key: str | None, lines: Sequence[str] = ()
) -> bytes:
    """Request line and headers, the blank line included."""
    head = [
        f"{method} {address.prefix}{target} HTTP/1.1",
        f"Host: {address.authority}",
        f"User-Agent: tilemlp-load/{__version__}",
        *lines,
    ]
    if api_key is not None:
        head.append(f"Authorization: Bearer {api_key}")
    return ("\r\n".join(head) + "\r\n\r\n").encode("ascii")


def encode(values: NDArray[np.float32], dtype: DType) -> bytes:
    """Little-endian bytes of the values, rounded to nearest even; bf16 for finite values only."""
    if dtype is DType.FP32:
        return values.astype("<f4").tobytes()
    if dtype is DType.FP16:
        return values.astype("<f2").tobytes()
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    high: NDArray[np.uint16] = (rounded >> np.uint32(16)).astype("<u2")
    return high.tobytes()


def decode(body: bytes | memoryview, dtype: DType) -> NDArray[np.float32]:
    """Flat FP32 values of little-endian bytes; exact."""
    if dtype is DType.FP32:
        return np.frombuffer(body, "<f4").astype(np.float32, copy=False)
    if dtype is DType.FP16:
        return np.frombuffer(body, "<f2").astype(np.float32)
    bits: NDArray[np.uint32] = np.frombuffer(body, "<u2").astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)
