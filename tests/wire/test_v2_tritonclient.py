"""Triton's own client as the peer, without a server in between."""

import gzip
import math

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton

from service.engine.base import DType, Output
from service.errors import InvalidRequest
from service.wire.compression import Inflation, deflate
from service.wire.media import Encoding
from service.wire.v2 import answer_dtype, decode_v2, encode_v2
from service.wire.window import Window
from tests.wire.samples import SPEC

NUMPY = {DType.FP32: np.float32, DType.FP16: np.float16, DType.BF16: ml_dtypes.bfloat16}
Client = triton.InferenceServerClient


def input_of(array, datatype, binary=True):
    tensor = triton.InferInput("x", list(array.shape), datatype)
    return tensor.set_data_from_numpy(array, binary_data=binary)


def decode(body, length):
    return decode_v2(memoryview(body), length, SPEC, 1 << 20)


def answer(request, array):
    """What the client makes of an answer with these numbers."""
    chunks, length = encode_v2(
        request, "small", array.shape, answer_dtype(request), array.tobytes()
    )
    return Client.parse_response_body(b"".join(chunks), header_length=length)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("output", list(Output))
def test_binary(dtype, tokens, output):
    array = np.arange(tokens * 6, dtype=np.float32).reshape(tokens, 6).astype(NUMPY[dtype])
    body, length = Client.generate_request_body(
        [input_of(array, dtype.name)],
        outputs=[triton.InferRequestedOutput(output.value)],
        request_id="r-1",
    )
    request = decode(body, length)
    assert (request.id, request.output, request.binary_output) == ("r-1", output, True)
    assert (request.tensor.dtype, request.tensor.shape) == (dtype, (tokens, 6))
    assert bytes(request.tensor.data) == array.tobytes()

    result = np.arange(tokens * SPEC.width(output)).reshape(
        tokens, -1 if tokens else SPEC.width(output)
    )
    result = result.astype(np.float32).astype(NUMPY[dtype])
    received = answer(request, result)
    assert received.get_response()["id"] == "r-1"
    numbers = received.as_numpy(output.value)
    assert numbers.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(numbers, result)


def test_without_outputs_the_answer_is_binary_even_for_json():
    array = np.ones((2, 6), np.float32)
    body, length = Client.generate_request_body([input_of(array, "FP32", binary=False)])
    assert length is None
    request = decode(body, length)
    assert (request.output, request.binary_output) == (Output.MLP, True)
    np.testing.assert_array_equal(answer(request, array).as_numpy("mlp"), array)


@pytest.mark.parametrize("tokens", [0, 2])
def test_json_both_ways_with_nan_and_infinity(tokens):
    array = np.array([[math.nan, math.inf, -math.inf, -0.0, 0.1, 1e-40]] * 2, np.float32)[:tokens]
    body, length = Client.generate_request_body(
        [input_of(array, "FP32", binary=False)],
        outputs=[triton.InferRequestedOutput("mlp", binary_data=False)],
    )
    request = decode(body, length)
    assert not request.binary_output
    assert bytes(request.tensor.data) == array.tobytes()
    numbers = answer(request, array).as_numpy("mlp")
    assert numbers.shape == array.shape
    np.testing.assert_array_equal(numbers, array)
    np.testing.assert_array_equal(np.signbit(numbers), np.signbit(array))


def test_fp16_as_json_is_refused_both_ways():
    array = np.ones((1, 6), np.float16)
    body, length = Client.generate_request_body([input_of(array, "FP16", binary=False)])
    with pytest.raises(InvalidRequest, match="must be FP32"):
        decode(body, length)
    body, length = Client.generate_request_body(
        [input_of(array, "FP16")], outputs=[triton.InferRequestedOutput("mlp", binary_data=False)]
    )
    with pytest.raises(InvalidRequest, match="must be binary"):
        answer_dtype(decode(body, length))


def test_every_argument_of_the_client():
    body, length = Client.generate_request_body(
        [input_of(np.ones((1, 6), np.float32), "FP32")],
        sequence_id=7,
        sequence_start=True,
        priority=2,
        timeout=2_000_000,
        parameters={"layer": 3, "note": "ignored"},
    )
    request = decode(body, length)
    assert (request.layer, request.timeout_us) == (3, 2_000_000)


def test_tensors_in_shared_memory():
    tensor = triton.InferInput("x", [1, 6], "FP32")
    tensor.set_shared_memory("region", 24)
    shared = triton.InferRequestedOutput("gated")
    shared.set_shared_memory("answers", 40, offset=3)
    request = decode(*Client.generate_request_body([tensor], outputs=[shared]))
    assert (request.source, request.target) == (Window("region", 0, 24), Window("answers", 3, 40))


def test_classification_is_refused():
    plain = input_of(np.ones((1, 6), np.float32), "FP32")
    outputs = [triton.InferRequestedOutput("mlp", class_count=3)]
    with pytest.raises(InvalidRequest, match="classification"):
        decode(*Client.generate_request_body([plain], outputs=outputs))


@pytest.mark.parametrize("encoding", list(Encoding))
def test_compressed_both_ways(encoding):
    array = np.ones((3, 6), np.float16)
    body, length = Client.generate_request_body([input_of(array, "FP16")])
    packed = gzip.compress(body) if encoding is Encoding.GZIP else deflate([body], encoding)
    inflation = Inflation(memoryview(packed), encoding, len(body))
    assert inflation.go_on(len(body))
    request = decode(memoryview(inflation.grown), length)
    chunks, length = encode_v2(request, "small", (3, 6), DType.FP16, array.tobytes())
    received = Client.parse_response_body(
        deflate(chunks, encoding), header_length=length, content_encoding=encoding.value
    )
    np.testing.assert_array_equal(received.as_numpy("mlp"), array)
