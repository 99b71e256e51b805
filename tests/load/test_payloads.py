import ml_dtypes
import numpy as np
import pytest

from service.engine.base import DType, Output
from service.load.options import LoadOptions
from service.load.payloads import decode, encode, make_mix, make_payloads

NUMPY = {DType.BF16: ml_dtypes.bfloat16, DType.FP16: np.float16, DType.FP32: np.float32}


@pytest.mark.parametrize("dtype", DType)
def test_encoding_is_what_numpy_does(dtype):
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.standard_normal(4096),
            rng.standard_normal(4096) * 1e-4,
            # Ties of bf16, to even both ways, and a carry into the exponent.
            [1.00390625, 1.01171875, 1.998046875, -1.00390625, 0.0, -0.0],
        ]
    ).astype(np.float32)
    expected = values.astype(NUMPY[dtype])
    assert encode(values, dtype) == expected.tobytes()
    assert np.array_equal(decode(expected.tobytes(), dtype), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", DType)
def test_decoding_keeps_what_is_not_finite(dtype):
    values = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    decoded = decode(values.astype(NUMPY[dtype]).tobytes(), dtype)
    assert np.array_equal(decoded, values, equal_nan=True)


def bodies(payloads):
    return [payload.request.split(b"\r\n\r\n", 1)[1] for payload in payloads]


def test_no_two_rows_are_alike_and_lengths_are_right():
    options = LoadOptions(rows=((1, 1.0), (5, 1.0)))
    payloads = make_payloads(options, "m", 32)
    assert [p.index for p in payloads] == list(range(len(payloads)))
    assert {p.rows for p in payloads} == {1, 5}
    rows = set()
    for payload, body in zip(payloads, bodies(payloads), strict=True):
        assert len(body) == payload.body_bytes == payload.rows * 64
        rows |= {body[i : i + 64] for i in range(0, len(body), 64)}
    assert len(rows) == sum(p.rows for p in payloads) == 8 * 6


def test_the_seed_decides():
    def first(seed):
        return make_payloads(LoadOptions(seed=seed), "m", 32)[0].request

    assert first(1) == first(1) != first(2)


def test_large_payloads_are_few_but_never_alone(monkeypatch):
    monkeypatch.setattr("service.load.payloads._BYTES_PER_ROW_COUNT", 64 << 10)
    count = {
        rows: len(make_payloads(LoadOptions(rows=((rows, 1.0),)), "m", 8))
        for rows in (64, 1024, 4096)
    }
    assert count == {64: 8, 1024: 4, 4096: 2}


def test_head():
    options = LoadOptions(
        url="http://h:1/p",
        layer=3,
        output=Output.GATED,
        dtype=DType.FP16,
        api_key="secret-key",
    )
    head = make_payloads(options, "a/b c", 4)[0].request.split(b"\r\n\r\n")[0].decode()
    first, *lines = head.split("\r\n")
    assert first == "POST /p/mlp?model=a%2Fb+c&output=gated&layer=3 HTTP/1.1"
    assert lines[0] == "Host: h:1"
    assert {
        "Content-Type: application/octet-stream",
        "X-Tensor-Dtype: fp16",
        "Content-Length: 8",
        "Authorization: Bearer secret-key",
    } <= set(lines)


def test_without_key_or_layer_none_is_sent():
    head = make_payloads(LoadOptions(), "m", 4)[0].request
    assert b"Authorization" not in head
    assert b"layer" not in head


def test_mix_follows_the_weights_and_the_seed():
    options = LoadOptions(rows=((1, 14.0), (2, 5.0), (4, 1.0)))
    payloads = make_payloads(options, "m", 8)
    mix = make_mix(payloads, options.rows, seed=3)
    shares = {rows: sum(p.rows == rows for p in mix) / len(mix) for rows in (1, 2, 4)}
    assert shares == pytest.approx({1: 0.7, 2: 0.25, 4: 0.05}, rel=0.05)
    assert {p.index for p in mix} == {p.index for p in payloads}
    assert mix == make_mix(payloads, options.rows, seed=3)
    assert mix != make_mix(payloads, options.rows, seed=4)
