import json

import pytest

from service.errors import InvalidRequest, TooLarge
from service.wire.v2 import decode_v2
from tests.wire.samples import (
    LIMIT,
    ROW,
    SPEC,
    binary_document,
    decode_parts,
    json_document,
    window,
)


def refusal(*arguments, **keywords):
    with pytest.raises(InvalidRequest) as error:
        decode_parts(*arguments, **keywords)
    assert len(str(error.value)) < 300
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"inputs": None}, "inputs: must have one entry"),
        ({"inputs": []}, "inputs: must have one entry"),
        ({"inputs": {}}, "inputs: must be an array"),
        ({"inputs": [1]}, r"inputs[0]: must be an object"),
        ({"inputs": [{}, {}]}, "has 2"),
        ({"id": 7}, "id: must be a string"),
        ({"parameters": []}, "parameters: must be an object"),
        ({"parameters": {"layer": -1}}, "layer"),
        ({"parameters": {"layer": True}}, "layer"),
        ({"parameters": {"layer": 1.0}}, "layer"),
        ({"parameters": {"layer": "-1"}}, "layer"),
        ({"parameters": {"layer": "²"}}, "layer"),
        ({"parameters": {"layer": "9" * 5000}}, "layer"),
        ({"parameters": {"timeout": -1}}, "timeout"),
        ({"parameters": {"timeout": 2**63}}, "timeout"),
        ({"parameters": {"timeout": 1.5}}, "timeout"),
        ({"parameters": {"timeout": "5"}}, "timeout"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output: must be true or false"),
        ({"outputs": {}}, "outputs: must be an array"),
        ({"outputs": [{"name": "mlp"}, {"name": "gated"}]}, "outputs: must have one entry, has 2"),
        ({"outputs": [{"name": "y"}]}, "outputs[0].name: must be one of mlp, gated"),
        ({"outputs": [{}]}, "outputs[0].name"),
        ({"outputs": [None]}, "outputs[0]: must be an object"),
        ({"outputs": [{"name": "mlp", "parameters": {"binary_data": "yes"}}]}, "binary_data"),
        ({"outputs": [{"name": "mlp", "parameters": {"classification": 3}}]}, "classification"),
        (
            {"outputs": [{"name": "mlp", "parameters": {"shared_memory_region": "r"}}]},
            "outputs[0].parameters.shared_memory_byte_size: must be given, is absent",
        ),
        (
            {
                "outputs": [
                    {"name": "mlp", "parameters": {"binary_data": True, **window(12, offset=3)}}
                ]
            },
            "must have one of binary_data and shared_memory_region",
        ),
    ],
)
def test_refused_members_of_the_request(changes, sentence):
    assert sentence in refusal({**binary_document(), **changes}, ROW)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "y"}, "inputs[0].name: must be 'x', is 'y'"),
        ({"name": None}, "inputs[0].name"),
        ({"datatype": "FP64"}, "datatype: must be one of BF16, FP16, FP32, is 'FP64'"),
        ({"datatype": "bf16"}, "datatype"),
        ({"datatype": 1}, "datatype: must be a string"),
        ({"shape": None}, "shape"),
        ({"shape": []}, "shape"),
        ({"shape": "1,6"}, "shape: must be an array"),
        ({"shape": [1.0, 6]}, "shape"),
        ({"shape": [True, 6]}, "shape"),
        ({"shape": [-1, 6]}, "negative"),
        ({"shape": [1, 5]}, "hidden_size 6"),
        ({"shape": [2, 6]}, "24 bytes"),
        ({"shape": [1] * 8 + [6]}, "8 dimensions"),
        ({"shape": [2**62, 4, 6]}, "2**53"),
        ({"shape": [2**32, 2**32, 6]}, "2**53"),
        ({"shape": [2**52, 0, 6]}, "2**53"),
        ({"parameters": {"binary_data_size": 11}}, "binary_data_size"),
        ({"parameters": {"binary_data_size": 10**30}}, "binary_data_size"),
        ({"parameters": {"binary_data_size": -12}}, "binary_data_size"),
        ({"parameters": {"binary_data_size": 12.0}}, "binary_data_size: must be an integer"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size: must be an integer"),
        ({"parameters": {"binary_data_size": "12"}}, "binary_data_size: must be an integer"),
        ({"parameters": window(12)}, "12 bytes follow the JSON"),
        ({"parameters": {**window(12), "binary_data_size": 12}}, "must have one of data,"),
        ({"parameters": window(12), "data": [1] * 6}, "must have one of data,"),
        ({"parameters": {}}, "must have one of data,"),
        ({"data": [1] * 6}, "must have one of data,"),
        ({"parameters": {}, "data": [1] * 6, "datatype": "FP32"}, "12 bytes follow the JSON"),
    ],
)
def test_refused_members_of_the_input(changes, sentence):
    assert sentence in refusal(binary_document(**changes), ROW)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (window(11), "byte_size: must be 12 for BF16 of shape [1, 6], is 11"),
        (window(-12), "byte_size: must be 0 to 2**62 - 1, is -12"),
        (window(2**62), "byte_size: must be 0 to 2**62 - 1"),
        (window(12.0), "byte_size: must be an integer"),
        (window(True), "byte_size: must be an integer"),
        (window(12, offset=-1), "offset: must be 0 to 2**62 - 1, is -1"),
        (window(12, offset="1"), "offset: must be an integer"),
        (window(12, region=7), "region: must be a string"),
        (window(12, region="r" * 256), "region: must have at most 255 characters, has 256"),
        ({"shared_memory_region": "r"}, "byte_size: must be given, is absent"),
        ({"shared_memory_byte_size": 12}, "region: must be given, is absent"),
        ({"shared_memory_offset": 12}, "region: must be given, is absent"),
    ],
)
def test_refused_windows_of_shared_memory(parameters, sentence):
    assert sentence in refusal(binary_document(parameters=parameters), b"")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"datatype": "BF16"}, "must be FP32, is BF16"),
        ({"datatype": "FP16"}, "must be FP32, is FP16"),
        ({"data": [1] * 5}, "shape [1, 6] or 6 flat numbers, is of shape [5]"),
        ({"data": [[1] * 3] * 2}, "is of shape [2, 3]"),
        ({"data": [[1] * 6, [1] * 5]}, "rectangular"),
        ({"data": [[True] * 6]}, "numbers only"),
        ({"data": []}, "is of shape [0]"),
        ({"data": 5}, "data: must be an array"),
        ({"data": [10**400] * 6}, "range of a double"),
    ],
)
def test_refused_json_data(changes, sentence):
    assert sentence in refusal(json_document(**changes), length=None)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff", b'{"inputs":[' * 3000, b"[" * 60000]
)
def test_refused_json(text):
    assert refusal(text, length=None).startswith("JSON:")


def test_a_raw_request_with_part_of_a_row():
    assert "12 bytes" in refusal(b"", ROW + b"x", length=0)


def test_lengths_that_cut_wrongly():
    document = json.dumps(binary_document()).encode()
    for length in (1, len(document) - 1, len(document) + 1, len(document) + len(ROW)):
        assert refusal(document, ROW, length=length).startswith("JSON:")
    assert "is 2147483648" in refusal(document, ROW, length=2**31)
    assert refusal(document, ROW, length=None).startswith("JSON:")
    for binary in (ROW + b"x", ROW[:-1], b""):
        assert "binary_data_size" in refusal(document, binary)


def test_json_beyond_the_limit():
    padding = b" " * LIMIT
    for length in (None, LIMIT + 1):
        with pytest.raises(TooLarge, match="MLP_MAX_JSON_BYTES"):
            decode_v2(memoryview(padding + b" "), length, SPEC, LIMIT)
    header = json.dumps(binary_document(9000)).encode()
    assert (
        decode_v2(memoryview(header + ROW * 9000), len(header), SPEC, LIMIT).tensor.tokens == 9000
    )
