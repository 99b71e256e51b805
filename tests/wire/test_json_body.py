import json
import math
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import DType
from service.errors import InvalidRequest, TooLarge
from service.wire.json_body import decode_json, encode_json
from service.wire.tensor import WireTensor
from tests.wire.samples import value_or_refusal

LIMIT = 1 << 16


def decode(text, hidden_size=3, limit=LIMIT):
    body = text if isinstance(text, bytes) else text.encode()
    return decode_json(memoryview(body), hidden_size, limit)


def numbers(tensor):
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


@pytest.mark.parametrize(
    ("inputs", "shape"),
    [
        ("[[1, 2.5, -3e-2], [4, 5, 6]]", (2, 3)),
        ("[1, 2, 3]", (3,)),
        ("[[[1, 2, 3]], [[4, 5, 6]]]", (2, 1, 3)),
        ("[[[[[[[[1, 2, 3]]]]]]]]", (1,) * 7 + (3,)),
        ("[]", (0, 3)),
    ],
)
def test_nested_numbers(inputs, shape):
    tensor = decode(f'{{"inputs": {inputs}}}')
    assert (tensor.shape, tensor.dtype) == (shape, DType.FP32)
    if tensor.tokens:
        np.testing.assert_array_equal(numbers(tensor), np.array(json.loads(inputs), np.float32))
    assert not memoryview(tensor.data).readonly


def test_numbers_that_json_lacks_and_numbers_beyond_fp32():
    tensor = decode(
        '{"inputs": [[NaN, Infinity, -Infinity], [1e39, -1e400, 1e-60], [0.1, 16777217, -0.0]]}'
    )
    values = numbers(tensor)
    assert math.isnan(values[0, 0])
    assert values[0, 1:].tolist() == [math.inf, -math.inf]
    assert values[1].tolist() == [math.inf, -math.inf, 0.0]
    assert values[2].tolist() == [np.float32(0.1), 16777216.0, 0.0]
    assert np.signbit(values[2, 2])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"inputs": [[1, 2, 3], [4, 5]]}', r"rectangular, dimension 1 mixes lengths \[2, 3\]"),
        ('{"inputs": [[1, 2, 3], 4]}', "rectangular"),
        ('{"inputs": [[1, 2, 3], [4, 5, [6]]]}', r"numbers only, has \[6\]"),
        ('{"inputs": [[1, 2, true]]}', "numbers only, has True"),
        ('{"inputs": [[1, 2, null]]}', "numbers only, has None"),
        ('{"inputs": [[1, 2, "3"]]}', "numbers only, has '3'"),
        ('{"inputs": [[1, 2, {}]]}', "numbers only"),
        ('{"inputs": ["abc", "def"]}', "numbers only, has 'abc'"),
        ('{"inputs": [[1, 2]]}', "hidden_size 3"),
        ('{"inputs": [[]]}', "hidden_size 3"),
        ('{"inputs": [[[[[[[[[1, 2, 3]]]]]]]]]}', "at most 8 dimensions"),
        ('{"inputs": {"0": [1, 2, 3]}}', "must be an array"),
        ('{"inputs": 3}', "must be an array"),
        ('{"inputs": null}', "must be an array"),
        ('{"inputs": [[1, 2, 1%s]]}' % ("0" * 400), "range of a double"),
        ('{"inputs": [[1, 2, 1%s]]}' % ("0" * 5000), "JSON: "),
        ('{"inputs": [[1, 2, 3]], "layer": 3}', "one key"),
        ('{"input": [[1, 2, 3]]}', "one key"),
        ('{"inputs": [[1, 2, 3]], "inputs": [[1, 2, 3]]}', "appear once, 'inputs'"),
        ("{}", "one key"),
        ("[[1, 2, 3]]", "one key"),
        ("", "JSON: "),
        ('{"inputs": [[1, 2, 3]]', "JSON: "),
        ('{"inputs": [[1, 2, 3]]} x', "JSON: "),
        ('{"inputs": [[1, 2, nan]]}', "JSON: "),
        ('\ufeff{"inputs": [[1, 2, 3]]}', "JSON: "),
        (b'{"inputs": [["\xff"]]}', "UTF-8, byte 14 is not"),
        ('{"inputs": [[1, 2, 3]]}'.encode("utf-16"), "UTF-8"),
        ("[" * 60000, "too deeply"),
        ('{"a":' * 12000, "too deeply"),
    ],
)
def test_refusals(text, sentence):
    with pytest.raises(InvalidRequest, match=sentence) as error:
        decode(text)
    assert len(str(error.value)) < 250


def test_the_limit_and_its_setting_are_named():
    text = '{"inputs": [[1, 2, 3]]}'
    assert decode(text, limit=len(text)).tokens == 1
    with pytest.raises(
        TooLarge, match=rf"at most {len(text) - 1} bytes .*MLP_MAX_JSON_BYTES.* is {len(text)}"
    ):
        decode(text, limit=len(text) - 1)


@given(st.lists(st.binary(min_size=12, max_size=12), max_size=4), st.integers(0, 2))
def test_every_fp32_survives_both_ways(rows, ones):
    values = np.frombuffer(b"".join(rows), np.float32)
    shape = (len(rows), *[1] * ones, 3)
    text = encode_json(WireTensor(values.tobytes(), DType.FP32, shape))
    document = json.loads(text)
    assert (document["shape"], document["dtype"]) == (list(shape), "fp32")
    read = np.array(document["outputs"], np.float32).reshape(shape)
    nan = np.isnan(values.reshape(shape))
    np.testing.assert_array_equal(np.isnan(read), nan)
    np.testing.assert_array_equal(
        read.view(np.uint32)[~nan], values.reshape(shape).view(np.uint32)[~nan]
    )
    if rows:
        again = decode(json.dumps({"inputs": document["outputs"]}))
        assert again.shape == shape
        assert numbers(again).tobytes() == read.tobytes()


def test_what_an_answer_looks_like():
    data = struct.pack("<6f", 1, -0.0, 0.1, math.nan, math.inf, -math.inf)
    assert encode_json(WireTensor(data, DType.FP32, (2, 3))) == (
        b'{"outputs":[[1,-0.0,0.100000001],[NaN,Infinity,-Infinity]],"shape":[2, 3],"dtype":"fp32"}'
    )
    assert encode_json(WireTensor(data, DType.FP32, (6,))).startswith(b'{"outputs":[1,-0.0,')
    assert encode_json(WireTensor(data, DType.FP32, (1, 2, 3))).startswith(b'{"outputs":[[[1,')
    row = struct.pack("<3f", 1, 2, -0.0)
    assert encode_json(WireTensor(row, DType.FP32, (1, 3))).startswith(b'{"outputs":[[1,2,-0.0]]')


@pytest.mark.parametrize("shape", [(0, 3), (4, 0, 3), (2**50, 0, 3)])
def test_no_rows_cost_nothing(shape):
    document = json.loads(encode_json(WireTensor(b"", DType.FP32, shape)))
    assert document == {"outputs": [], "shape": list(shape), "dtype": "fp32"}


def test_other_dtypes_are_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="fp32"):
        encode_json(WireTensor(bytes(6), DType.BF16, (1, 3)))


def test_long_texts_are_read_like_short_ones():
    values = np.random.default_rng(0).standard_normal((2000, 3)).astype(np.float32)
    rows = [*values.tolist(), [7, -8, math.nan]]
    text = json.dumps({"inputs": rows})
    tensor = decode(text, limit=1 << 20)
    np.testing.assert_array_equal(numbers(tensor), np.array(rows, np.float32))
    for broken, sentence in (
        (text[:-1] + ', "inputs": 1}', "appear once"),
        (text.replace("-8", "true"), "numbers only, has True"),
        (text.replace("-8", "8" * 5000), "JSON: "),
        (text.replace("-8", "8" * 400), "range of a double"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            decode(broken, limit=1 << 20)


def longest_pause_of_others(work):
    """Longest time for which this thread did not run while another one worked, and the whole."""
    worker = threading.Thread(target=work)
    began = last = time.perf_counter()
    worker.start()
    pauses = []
    while worker.is_alive():
        time.sleep(0.0005)
        now = time.perf_counter()
        pauses.append(now - last)
        last = now
    return max(pauses), last - began


@pytest.mark.parametrize("direction", ["decode", "encode"])
def test_long_texts_leave_other_threads_their_turn(direction):
    values = np.random.default_rng(0).standard_normal((300, 896)).astype(np.float32)
    tensor = WireTensor(values.tobytes(), DType.FP32, values.shape)
    text = json.dumps({"inputs": values.tolist()})

    def work():
        if direction == "decode":
            decode(text, hidden_size=896, limit=1 << 24)
        else:
            encode_json(tensor)

    # A single call of C code would pause the others for nearly all of the time. The best of a
    # few tries, because the machine has other things to do.
    shares = []
    for _ in range(5):
        pause, whole = longest_pause_of_others(work)
        shares.append(pause / whole)
    assert min(shares) < 0.5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["inputs", "x"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_gives_a_tensor_or_a_sentence(value):
    for document in (value, {"inputs": value}):
        tensor = value_or_refusal(decode, json.dumps(document))
        assert tensor is None or len(tensor.data) == 4 * math.prod(tensor.shape)


@given(st.binary(max_size=40))
def test_any_bytes_give_a_tensor_or_a_sentence(content):
    for body in (content, b'{"inputs": ' + content + b"}", b'{"inputs": [[' + content + b"]]}"):
        value_or_refusal(decode, body)
