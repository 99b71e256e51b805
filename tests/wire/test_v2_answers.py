import json
import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import DType, Output
from service.errors import InvalidRequest
from service.wire.tensor import WireTensor
from service.wire.v2 import V2Request, answer_dtype, decode_v2, encode_v2
from service.wire.window import Window
from tests.wire.samples import LIMIT, ROW, SPEC


def request_for(dtype, binary, output=Output.MLP, id=None):
    return V2Request(WireTensor(b"", dtype, (0, 6)), id, output, binary, None, None)


def test_answer_dtype():
    for dtype in DType:
        assert answer_dtype(request_for(dtype, True)) is dtype
    assert answer_dtype(request_for(DType.FP32, False)) is DType.FP32
    for dtype in (DType.BF16, DType.FP16):
        with pytest.raises(InvalidRequest, match=f"binary for {dtype.name}"):
            answer_dtype(request_for(dtype, False))


def test_binary_answer():
    data = bytearray(ROW * 2)
    request = request_for(DType.BF16, True, id='a"ü')
    (header, body), length = encode_v2(request, "small", (2, 6), DType.BF16, data)
    assert body is data
    assert length == len(header)
    assert json.loads(header) == {
        "model_name": "small",
        "model_version": "1",
        "id": 'a"ü',
        "outputs": [
            {
                "name": "mlp",
                "datatype": "BF16",
                "shape": [2, 6],
                "parameters": {"binary_data_size": 24},
            }
        ],
    }


def test_json_answer():
    data = memoryview(struct.pack("<4f", 1, math.nan, -0.0, 4.5)).cast("f")
    request = request_for(DType.FP32, False, Output.GATED)
    (body,), length = encode_v2(request, "small", (2, 2), DType.FP32, data)
    assert length is None
    document = json.loads(body)
    assert "id" not in document
    (output,) = document["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("gated", "FP32", [2, 2])
    assert "parameters" not in output
    values = output["data"]
    assert values[0] == 1
    assert math.isnan(values[1])
    assert math.copysign(1, values[2]) == -1
    assert values[3] == 4.5


@pytest.mark.parametrize("shape", [(0, 6), (2**50, 0, 6)])
def test_answers_without_rows(shape):
    (header,), length = encode_v2(request_for(DType.BF16, True), "small", shape, DType.BF16, b"")
    assert length == len(header)
    assert json.loads(header)["outputs"][0]["parameters"] == {"binary_data_size": 0}
    (header,), length = encode_v2(request_for(DType.FP32, False), "small", shape, DType.FP32, b"")
    assert length is None
    assert json.loads(header)["outputs"][0]["data"] == []


@given(
    st.sampled_from(DType),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(Output),
    st.text(max_size=5),
    st.data(),
)
def test_an_answer_is_a_request_turned_round(dtype, lead, output, id, data):
    """The binary layout is the same both ways: decode the answer as if it were a request."""
    shape = (*lead, 6)
    size = math.prod(shape) * dtype.itemsize
    content = data.draw(st.binary(min_size=size, max_size=size))
    request = request_for(dtype, True, output, id or None)
    chunks, length = encode_v2(request, "small", shape, dtype, content)
    header = json.loads(chunks[0])
    assert header.get("id", "") == id
    (entry,) = header["outputs"]
    mirrored = json.dumps({"inputs": [{**entry, "name": "x"}]}).encode()
    tensor = decode_v2(
        memoryview(mirrored + b"".join(chunks[1:])), len(mirrored), SPEC, LIMIT
    ).tensor
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (dtype, shape, content)
    assert length == len(chunks[0])


def test_an_answer_in_shared_memory_says_where_it_is():
    request = replace(request_for(DType.BF16, False), target=Window('r"', 5, 99))
    (body,), length = encode_v2(request, "small", (2, 6), DType.BF16, bytearray(ROW * 2))
    assert length is None
    (output,) = json.loads(body)["outputs"]
    assert output == {
        "name": "mlp",
        "datatype": "BF16",
        "shape": [2, 6],
        "parameters": {
            "shared_memory_region": 'r"',
            "shared_memory_offset": 5,
            "shared_memory_byte_size": 24,
        },
    }


def test_shared_memory_has_a_form_for_every_type():
    for dtype in DType:
        request = replace(request_for(dtype, False), target=Window("r", 0, 24))
        assert answer_dtype(request) is dtype
