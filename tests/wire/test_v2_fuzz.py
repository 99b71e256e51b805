import copy
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from service.wire.v2 import decode_v2
from tests.wire.samples import (
    LIMIT,
    ROW,
    SPEC,
    binary_document,
    json_document,
    value_or_refusal,
)


def decodes_or_refuses(body, length):
    request = value_or_refusal(
        decode_v2, memoryview(body), length, SPEC, LIMIT, statuses=(400, 413)
    )
    if request is not None:
        tensor = request.tensor
        assert memoryview(tensor.data).nbytes == math.prod(tensor.shape) * tensor.dtype.itemsize
        assert tensor.shape[-1] == SPEC.hidden_size


lengths = st.none() | st.integers(0, 400) | st.sampled_from([2**31, 2**63])


@given(st.binary(max_size=80), lengths)
def test_any_bytes_give_a_request_or_a_sentence(body, length):
    decodes_or_refuses(body, length)


@given(st.sampled_from([binary_document(), json_document()]), st.data())
def test_mutated_bytes_give_a_request_or_a_sentence(document, data):
    body = bytearray(
        json.dumps(document).encode() + (ROW if "data" not in document["inputs"][0] else b"")
    )
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(body) - 1))
        body[index : index + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    decodes_or_refuses(body, data.draw(lengths | st.just(len(json.dumps(document)))))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["x", "mlp", "gated", "BF16", "FP32", "12", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "shape",
                    "datatype",
                    "data",
                    "parameters",
                    "binary_data_size",
                    "binary_data",
                    "layer",
                    "timeout",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def places(value, path=()):
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from places(item, (*path, key))


@settings(max_examples=300)
@given(st.booleans(), st.data())
def test_mutated_documents_give_a_request_or_a_sentence(binary, data):
    document = copy.deepcopy(binary_document() if binary else json_document())
    document |= {
        "id": "1",
        "parameters": {"layer": 3, "timeout": 5, "binary_data_output": True},
        "outputs": [{"name": "mlp", "parameters": {"binary_data": True}}],
    }
    *path, last = data.draw(st.sampled_from([place for place in places(document) if place]))
    target = document
    for key in path:
        target = target[key]
    if data.draw(st.booleans()):
        target[last] = data.draw(values)
    else:
        del target[last]
    header = json.dumps(document).encode()
    body = header + (ROW if binary else b"")
    decodes_or_refuses(body, data.draw(st.just(len(header)) | lengths))
