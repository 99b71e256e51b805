import json
import math

import numpy as np
import pytest

from service.engine.base import DType, ModelSpec, Output
from service.errors import InvalidRequest
from service.wire.tensor import WireTensor
from service.wire.v2 import V2Request, decode_v2, parse_header_length
from service.wire.window import Window
from tests.wire.samples import (
    LIMIT,
    ROW,
    SPEC,
    binary_document,
    decode_parts,
    json_document,
    window,
)


def test_binary_request_with_everything():
    document = binary_document(2)
    document["id"] = "seven"
    document["parameters"] = {"layer": 3, "timeout": 1500, "binary_data_output": True}
    document["outputs"] = [{"name": "gated"}]
    request = decode_parts(document, ROW * 2)
    assert request == V2Request(
        WireTensor(memoryview(ROW * 2), DType.BF16, (2, 6)), "seven", Output.GATED, True, 3, 1500
    )


def test_binary_data_is_a_view():
    header = json.dumps(binary_document()).encode()
    body = bytearray(header + ROW)
    request = decode_v2(memoryview(body), len(header), SPEC, LIMIT)
    body[-1] = 99
    assert request.tensor.data[-1] == 99


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "FP32"])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_datatypes_and_rows(datatype, tokens):
    dtype = DType[datatype]
    size = tokens * 6 * dtype.itemsize
    request = decode_parts(
        binary_document(tokens, datatype=datatype, parameters={"binary_data_size": size}),
        bytes(size),
    )
    assert (request.tensor.dtype, request.tensor.shape) == (dtype, (tokens, 6))


def test_no_rows_need_no_length_header():
    request = decode_parts(binary_document(0), length=None)
    assert request.tensor.tokens == 0


def test_raw_binary_request():
    request = decode_parts(b"", ROW * 3, length=0)
    assert request == V2Request(
        WireTensor(memoryview(ROW * 3), DType.BF16, (3, 6)), None, Output.MLP, True, None, None
    )
    assert decode_parts(b"", b"", length=0).tensor.tokens == 0


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 6], list(range(12))),
        ([2, 6], [list(range(6)), list(range(6, 12))]),
        ([2, 1, 6], [[list(range(6))], [list(range(6, 12))]]),
        ([2, 1, 6], list(range(12))),
        ([12 // 2], list(range(6))),
        ([0, 6], []),
        ([2, 0, 6], [[], []]),
    ],
)
def test_json_data(shape, data):
    tensor = decode_parts(json_document(shape=shape, data=data), length=None).tensor
    assert (tensor.dtype, tensor.shape) == (DType.FP32, tuple(shape))
    expected = [float(value) for value in range(math.prod(shape))]
    assert (memoryview(tensor.data).cast("f").tolist() if expected else []) == expected


def test_json_data_with_the_tokens_of_rapidjson():
    text = json.dumps(json_document(data=[math.nan, math.inf, -math.inf, 0, 0, 0]))
    assert "NaN" in text
    values = memoryview(decode_parts(text.encode(), length=None).tensor.data).cast("f").tolist()
    assert math.isnan(values[0])
    assert values[1:3] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("entry", "request_wide", "expected"),
    [
        (None, None, False),
        (None, True, True),
        (True, None, True),
        (True, False, True),
        (False, True, False),
        (None, False, False),
    ],
)
def test_which_answers_are_binary(entry, request_wide, expected):
    document = binary_document()
    document["outputs"] = [
        {"name": "mlp", "parameters": {} if entry is None else {"binary_data": entry}}
    ]
    if request_wide is not None:
        document["parameters"] = {"binary_data_output": request_wide}
    request = decode_parts(document, ROW)
    assert (request.output, request.binary_output) == (Output.MLP, expected)


@pytest.mark.parametrize(
    ("parameters", "layer", "timeout_us"),
    [
        ({}, None, None),
        ({"layer": 0}, 0, None),
        ({"layer": "12"}, 12, None),
        ({"layer": None, "timeout": None}, None, None),
        ({"timeout": 0}, None, None),
        ({"timeout": 2**63 - 1}, None, 2**63 - 1),
        (
            {"priority": 3, "sequence_id": "a", "sequence_start": True, "headers": "custom"},
            None,
            None,
        ),
    ],
)
def test_parameters(parameters, layer, timeout_us):
    request = decode_parts({**binary_document(), "parameters": parameters}, ROW)
    assert (request.layer, request.timeout_us) == (layer, timeout_us)


def test_members_that_are_null_or_empty_are_absent():
    document = {**binary_document(), "id": "", "parameters": None, "outputs": []}
    request = decode_parts(document, ROW)
    assert (request.id, request.output, request.binary_output) == (None, Output.MLP, False)


def test_header_length():
    assert parse_header_length(None, 10) is None
    assert parse_header_length("0", 10) == 0
    assert parse_header_length("10", 10) == 10
    assert parse_header_length("1000", None) == 1000
    for value in (
        "-1",
        "",
        "abc",
        "1.0",
        "+1",
        " 1",
        "1e3",
        "0x10",
        "²",
        "9" * 5000,
        "11",
        "2147483648",
    ):
        with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length") as error:
            parse_header_length(value, 10)
        assert len(str(error.value)) < 200


def test_tensors_in_shared_memory():
    document = binary_document(2, parameters=window(24, offset=7))
    document["outputs"] = [
        {"name": "mlp", "parameters": {"binary_data": False, **window(99, region="other")}}
    ]
    document["parameters"] = {"binary_data_output": True}
    for length in (-1, None):
        request = decode_parts(document, length=length)
        assert (request.tensor.data, request.tensor.shape) == (b"", (2, 6))
        assert request.source == Window("r", 7, 24)
        assert request.target == Window("other", 0, 99)
        assert not request.binary_output


def test_headers_that_are_the_same_have_data_of_their_own():
    header = json.dumps(binary_document(2, name="x") | {"id": "same"}).encode()
    for seed in range(3):
        binary = bytes([seed]) * 24
        request = decode_v2(memoryview(header + binary), len(header), SPEC, LIMIT)
        assert (bytes(request.tensor.data), request.id) == (binary, "same")
        with pytest.raises(InvalidRequest, match="must be the 23 bytes that follow"):
            decode_v2(memoryview(header + binary[1:]), len(header), SPEC, LIMIT)
    wider = ModelSpec("wide", 12, 10, (0,), "silu", DType.BF16)
    with pytest.raises(InvalidRequest, match="hidden_size 12"):
        decode_v2(memoryview(header + bytes(24)), len(header), wider, LIMIT)


def test_data_in_json_is_neither_kept_nor_shared():
    document = json.dumps(json_document()).encode()
    first, second = (decode_parts(document).tensor.data for _ in range(2))
    memoryview(first)[:4] = bytes(4)
    assert np.frombuffer(second, "float32").tolist() == [1, 2, 3, 4, 5, 6]
