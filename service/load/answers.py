"""Whether an answer is the right one.

What is right is what the service itself answered when it got the same rows alone. Under load it may
differ from that by rounding only: another batch size means another kernel, another split of the sum
and another place to round the gated tensor to bf16.

Tolerance: |a − b| ≤ 2⁻⁶ · max|row|, for every element. With u = 2⁻⁸, the largest relative error of
one rounding to bf16 (8 significant bits):

* `gated`: a kernel rounds once (u), or the gate before the product too (2u). Two answers within 2u
  of the same exact value are within 4u = 2⁻⁶ of each other. FP32 sums in another order add
  √K · 2⁻²⁴ of a row's typical value, which is 2⁻¹⁷ for the widest models.
* `mlp`: a rounding errs by 0.4u root mean square, two by 0.6u, and independently from one element
  of the gated row to the next, so an output element errs by 0.6u · r, r being the root mean square
  of its row, and the worst of 10⁶ elements by 5 times that. Two answers differ by √2 more, that is
  4.2u · r. max|row| is at least 3r, which makes it 1.4u · max|row|. The last rounding adds at most
  u for each answer: 3.4u, below 4u.

This is no weaker where it counts: an element of another row is off by about a third of max|row|,
20 times the tolerance, and all of them would have to be near. FP16 and FP32 on the wire do not
tighten the bound, since weights and gated tensor stay bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.base import DType
from service.errors import StartError
from service.load.faults import Fault
from service.load.payloads import Payload, decode
from service.load.reader import Answer

TOLERANCE = 2.0**-6

# Up to here every element of every answer is compared: some 0.2 ms. Of a larger one it is as many
# rows as fit, the following ones each time: a mix-up of requests changes every row, so it is always
# seen, and comparing megabytes at once would be milliseconds that look like latency.
_BYTES_AT_ONCE = 128 << 10
# Exact bytes found right are remembered, since a deterministic engine answers the same rows in few
# ways (one per kernel and batch position), and comparing bytes costs a tenth of comparing numbers.
_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class Expected:
    """The right answer to one payload.

    Attributes:
        values: [rows, width], all finite.
        limits: [rows, 1], how far an element of the row may be off.
    """

    values: NDArray[np.float32]
    limits: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a check.

    Attributes:
        fault: What is wrong; None for a right answer.
        message: The same for people; empty for a right answer.
        is_full: Whether every element was compared, and not some rows alone.
    """

    fault: Fault | None = None
    message: str = ""
    is_full: bool = True


_RIGHT = Verdict()
_RIGHT_IN_PART = Verdict(is_full=False)


class AnswerChecker:
    """Checks answers of one model, output and wire dtype against the expected ones."""

    def __init__(self, expected: Sequence[Expected], dtype: DType) -> None:
        self._expected = expected
        self._dtype = dtype
        self._remembered: list[list[bytes]] = [[] for _ in expected]
        self._next_row = [0] * len(expected)

    def check(self, payload: Payload, answer: Answer) -> Verdict:
        """Check an answer with status 200."""
        expected = self._expected[payload.index]
        verdict = check_form(answer, expected.values.shape, self._dtype)
        if verdict is not None:
            return verdict
        if len(answer.body) > _BYTES_AT_ONCE:
            return self._check_in_part(payload.index, answer.body)
        body = bytes(answer.body)
        remembered = self._remembered[payload.index]
        if body in remembered:
            return _RIGHT
        verdict = _compare(decode(body, self._dtype), expected, slice(0, payload.rows))
        if verdict.fault is None and len(remembered) < _REMEMBERED:
            remembered.append(body)
        return verdict

    def _check_in_part(self, index: int, body: memoryview) -> Verdict:
        rows = len(self._expected[index].values)
        row_bytes = len(body) // rows
        first = self._next_row[index]
        last = min(rows, first + max(1, _BYTES_AT_ONCE // row_bytes))
        self._next_row[index] = last % rows
        part = decode(body[first * row_bytes : last * row_bytes], self._dtype)
        verdict = _compare(part, self._expected[index], slice(first, last))
        return _RIGHT_IN_PART if verdict.fault is None else verdict


def check_form(answer: Answer, shape: tuple[int, ...], dtype: DType) -> Verdict | None:
    """What is wrong with the headers or the length; None if nothing is."""
    stated = answer.headers.get(b"x-tensor-shape", b"").replace(b" ", b"")
    if stated != b"%d,%d" % shape:
        right = f"{shape[0]},{shape[1]}"
        message = f"X-Tensor-Shape: must be {right}, is {stated.decode('latin-1') or 'missing'}"
        return Verdict(Fault.WRONG_SHAPE, message)
    stated = answer.headers.get(b"x-tensor-dtype", b"")
    if stated != dtype.value.encode():
        message = f"X-Tensor-Dtype: must be {dtype.value}, is {stated.decode('latin-1')!r}"
        return Verdict(Fault.WRONG_DTYPE, message)
    length = shape[0] * shape[1] * dtype.itemsize
    if len(answer.body) != length:
        message = f"body: must have {length} bytes, has {len(answer.body)}"
        return Verdict(Fault.WRONG_LENGTH, message)
    return None


def make_expected(payload: Payload, width: int, dtype: DType, answer: Answer) -> Expected:
    """The expected answer to a payload, from the answer it got alone.

    Raises:
        StartError: it cannot be the right one whatever the weights are.
    """
    verdict = check_form(answer, (payload.rows, width), dtype)
    if verdict is not None:
        raise StartError(f"the service's answer to a lone request is wrong: {verdict.message}")
    values = decode(bytes(answer.body), dtype).reshape(payload.rows, width)
    if not np.isfinite(values).all():
        raise StartError("the service's answer to a lone request holds NaN or infinity")
    return Expected(values, np.abs(values).max(axis=1, keepdims=True) * np.float32(TOLERANCE))


def validate_distinct(expected: Sequence[Expected]) -> None:
    """Check that answers can be told apart, or a mix-up could not be seen.

    Raises:
        StartError: two different rows have the same answer within the tolerance.
    """
    values = np.concatenate([item.values for item in expected])
    limits = np.concatenate([item.limits for item in expected])
    # Neighbours in the order of the first element stand for all pairs: equal rows become
    # neighbours, and comparing each with each would be quadratic.
    order = np.argsort(values[:, 0], kind="stable")
    same = np.abs(np.diff(values[order], axis=0)) <= limits[order][1:]
    if same.all(axis=1).any():
        raise StartError("the service gives different rows the same answer, so none can be checked")


def _compare(flat: NDArray[np.float32], expected: Expected, rows: slice) -> Verdict:
    right = expected.values[rows]
    values = flat.reshape(right.shape)
    with np.errstate(invalid="ignore", over="ignore"):  # a wrong answer may hold anything
        is_near = np.abs(values - right) <= expected.limits[rows]
    if is_near.all():  # NaN is near to nothing
        return _RIGHT
    if not np.isfinite(values).all():
        return Verdict(Fault.NOT_FINITE, "answer holds NaN or infinity")
    off = int(np.count_nonzero(~is_near))
    row, column = (int(index) for index in np.argwhere(~is_near)[0])
    return Verdict(
        Fault.WRONG_VALUES,
        f"{off} of {values.size} elements off by more than 2^-6 of their row's largest, first at "
        f"row {row + rows.start} column {column}: must be {right[row, column]:.6g}, "
        f"is {values[row, column]:.6g}",
    )
