import numpy as np
import pytest

from service.engine.base import DType
from service.errors import StartError
from service.load.answers import AnswerChecker, Verdict, make_expected, validate_distinct
from service.load.faults import Fault
from service.load.payloads import Payload, decode, encode
from service.load.reader import Answer

RIGHT = Verdict()


def make_answer(body, shape, dtype=DType.BF16):
    headers = {
        b"x-tensor-shape": b"%d,%d" % shape,
        b"x-tensor-dtype": dtype.value.encode(),
    }
    return Answer(200, headers, memoryview(body), True, 0)


def answer_of(values, dtype=DType.BF16):
    return make_answer(encode(values, dtype), values.shape, dtype)


def normal(rows, width, seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return decode(encode(values, DType.BF16), DType.BF16).reshape(rows, width)


def checker_of(*tensors, dtype=DType.BF16):
    expected = []
    for index, values in enumerate(tensors):
        payload = Payload(index, len(values), b"", 0, "m")
        expected.append(make_expected(payload, values.shape[1], dtype, answer_of(values, dtype)))
    return AnswerChecker(expected, dtype), [
        Payload(i, len(v), b"", 0, "m") for i, v in enumerate(tensors)
    ]


def one_check(right, answer, dtype=DType.BF16):
    checker, payloads = checker_of(right, dtype=dtype)
    return checker.check(payloads[0], answer)


@pytest.mark.parametrize("dtype", DType)
def test_the_same_answer_is_right(dtype):
    right = normal(3, 64)
    assert one_check(right, answer_of(right, dtype), dtype) == RIGHT


@pytest.mark.parametrize("dtype", DType)
def test_each_element_may_be_off_by_the_tolerance_and_no_more(dtype):
    right = normal(4, 64)
    limit = np.abs(right).max(axis=1, keepdims=True) * 2.0**-6
    assert one_check(right, answer_of(right + 0.9 * limit, dtype), dtype) == RIGHT
    for position in ((0, 0), (2, 31), (3, 63)):
        wrong = right.copy()
        wrong[position] += 1.5 * limit[position[0], 0]
        verdict = one_check(right, answer_of(wrong, dtype), dtype)
        assert verdict.fault is Fault.WRONG_VALUES
        assert verdict.message.startswith("1 of 256 elements off")
        assert f"row {position[0]} column {position[1]}" in verdict.message


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda v: v[::-1], Fault.WRONG_VALUES),
        (lambda v: np.roll(v, 1, axis=1), Fault.WRONG_VALUES),
        (lambda v: np.concatenate([v[:1], v[:1], v[2:]]), Fault.WRONG_VALUES),
        (lambda v: v * np.float32(1.02), Fault.WRONG_VALUES),
        (np.zeros_like, Fault.WRONG_VALUES),
        (lambda v: np.where(np.arange(v.size).reshape(v.shape) == 77, np.inf, v), Fault.NOT_FINITE),
    ],
    ids=["rows swapped", "columns shifted", "row doubled", "scaled", "zeros", "infinity"],
)
def test_a_wrong_tensor_is_caught(change, fault):
    right = normal(4, 64)
    assert one_check(right, answer_of(change(right).astype(np.float32))).fault is fault


def test_nan_is_caught():
    right = normal(2, 8)
    body = bytearray(encode(right, DType.BF16))
    body[6:8] = b"\xc0\x7f"
    verdict = one_check(right, make_answer(body, (2, 8)))
    assert verdict.fault is Fault.NOT_FINITE


def test_a_signalling_nan_is_caught_without_a_warning():
    right = normal(2, 8)
    body = bytearray(right.tobytes())
    body[8:12] = b"\x01\x00\x80\x7f"
    answer = make_answer(body, (2, 8), DType.FP32)
    assert one_check(right, answer, DType.FP32).fault is Fault.NOT_FINITE


def test_the_answer_to_another_request_is_caught():
    first, second = normal(1, 64, seed=1), normal(1, 64, seed=2)
    checker, payloads = checker_of(first, second)
    for _ in range(3):
        assert checker.check(payloads[0], answer_of(first)) == RIGHT
        assert checker.check(payloads[1], answer_of(second)) == RIGHT
        assert checker.check(payloads[0], answer_of(second)).fault is Fault.WRONG_VALUES


def test_what_was_right_once_stays_right_and_what_was_wrong_stays_wrong():
    right = normal(1, 64)
    checker, payloads = checker_of(right)
    for step in range(20):  # more ways to be right than are remembered
        other = right * np.float32(1 + step * 2**-11)
        assert checker.check(payloads[0], answer_of(other)) == RIGHT
        assert checker.check(payloads[0], answer_of(right * 2)).fault is Fault.WRONG_VALUES


@pytest.mark.parametrize(
    ("shape", "dtype", "cut", "fault", "message"),
    [
        ((3, 8), "bf16", 48, None, ""),
        ((8, 3), "bf16", 48, Fault.WRONG_SHAPE, "X-Tensor-Shape: must be 3,8, is 8,3"),
        (None, "bf16", 48, Fault.WRONG_SHAPE, "X-Tensor-Shape: must be 3,8, is missing"),
        ((3, 8), "fp16", 48, Fault.WRONG_DTYPE, "X-Tensor-Dtype: must be bf16, is 'fp16'"),
        ((3, 8), None, 48, Fault.WRONG_DTYPE, "X-Tensor-Dtype: must be bf16, is ''"),
        ((3, 8), "bf16", 46, Fault.WRONG_LENGTH, "body: must have 48 bytes, has 46"),
        ((3, 8), "bf16", 0, Fault.WRONG_LENGTH, "body: must have 48 bytes, has 0"),
    ],
)
def test_form(shape, dtype, cut, fault, message):
    right = normal(3, 8)
    headers = {}
    if shape is not None:
        headers[b"x-tensor-shape"] = f"{shape[0]}, {shape[1]}".encode()
    if dtype is not None:
        headers[b"x-tensor-dtype"] = dtype.encode()
    body = memoryview(encode(right, DType.BF16))[:cut]
    verdict = one_check(right, Answer(200, headers, body, True, 0))
    assert (verdict.fault, verdict.message) == (fault, message)


def test_a_large_answer_is_compared_in_part():
    right = normal(300, 1024)
    checker, payloads = checker_of(right)
    verdict = checker.check(payloads[0], answer_of(right))
    assert (verdict.fault, verdict.is_full) == (None, False)


def test_a_large_answer_to_another_request_is_caught_every_time():
    right, other = normal(300, 1024, seed=1), normal(300, 1024, seed=2)
    checker, payloads = checker_of(right, other)
    faults = {checker.check(payloads[0], answer_of(other)).fault for _ in range(20)}
    assert faults == {Fault.WRONG_VALUES}


@pytest.mark.parametrize("row", [0, 63, 64, 123, 299])
def test_each_row_of_large_answers_has_its_turn(row):
    right = normal(300, 1024)  # 2 KiB a row: 64 rows at once, so five answers are a round
    wrong = right.copy()
    wrong[row] = -wrong[row]
    checker, payloads = checker_of(right, right[::-1])
    for _ in range(3):
        verdicts = [checker.check(payloads[0], answer_of(wrong)) for _ in range(5)]
        checker.check(payloads[1], answer_of(right[::-1]))  # has turns of its own
        (caught,) = (verdict for verdict in verdicts if verdict.fault is not None)
        assert caught.fault is Fault.WRONG_VALUES
        assert f"of {1024 * (64 if row < 256 else 44)} elements" in caught.message
        assert f"first at row {row} " in caught.message


def test_an_expected_answer_must_have_the_right_form():
    payload = Payload(0, 2, b"", 0, "m")
    with pytest.raises(StartError, match=r"lone request is wrong: X-Tensor-Shape: must be 2,9"):
        make_expected(payload, 9, DType.BF16, answer_of(normal(2, 8)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_expected_answer_must_be_finite(value):
    values = normal(2, 8)
    values[1, 3] = value
    with pytest.raises(StartError, match="holds NaN or infinity"):
        make_expected(Payload(0, 2, b"", 0, "m"), 8, DType.FP32, answer_of(values, DType.FP32))


def expected_of(*tensors):
    return checker_of(*tensors)[0]._expected


def test_answers_that_cannot_be_told_apart_are_refused():
    rows = normal(6, 32)
    validate_distinct(expected_of(rows[:3], rows[3:]))
    with pytest.raises(StartError, match="gives different rows the same answer"):
        validate_distinct(expected_of(rows[:3], rows[2:]))
    with pytest.raises(StartError, match="gives different rows the same answer"):
        validate_distinct(expected_of(np.zeros((2, 8), np.float32)))


def bf16(values):
    return decode(encode(values, DType.BF16), DType.BF16).reshape(values.shape)


def in_pieces(a, b, pieces):
    """a @ b with the sum over the inner dimension split, as another batch size may."""
    parts = zip(np.split(a, pieces, axis=1), np.split(b, pieces, axis=0), strict=True)
    return sum((x @ y for x, y in parts), np.zeros((len(a), b.shape[1]), np.float32))


def swiglu_mlp(x, gate_up, down, pieces, is_gate_rounded):
    gate, up = np.split(in_pieces(x, gate_up, pieces), 2, axis=1)
    gate = gate / (1 + np.exp(-gate))
    gated = bf16((bf16(gate) if is_gate_rounded else gate) * up)
    return gated, in_pieces(gated, down, pieces)


@pytest.mark.parametrize("scale", [0.02, 0.2])
@pytest.mark.parametrize("output", [0, 1], ids=["gated", "mlp"])
def test_the_tolerance_is_what_rounding_explains(scale, output):
    """Kernels that round in other places and sum in another order agree; by less than 4 times."""
    rng = np.random.default_rng(0)
    hidden, intermediate = 448, 2432
    x = bf16(rng.standard_normal((256, hidden)).astype(np.float32))
    gate_up = bf16((rng.standard_normal((hidden, 2 * intermediate)) * scale).astype(np.float32))
    down = bf16((rng.standard_normal((intermediate, hidden)) * scale).astype(np.float32))
    first = bf16(swiglu_mlp(x, gate_up, down, 1, is_gate_rounded=False)[output])
    second = bf16(swiglu_mlp(x, gate_up, down, 8, is_gate_rounded=True)[output])
    assert not np.array_equal(first, second)
    off = (np.abs(first - second) / np.abs(first).max(axis=1, keepdims=True)).max()
    assert 2**-6 / 4 < off <= 2**-6
    expected = expected_of(first)
    validate_distinct(expected)
