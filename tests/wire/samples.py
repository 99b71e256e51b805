"""What the tests of several codecs share."""

import json

from service.engine.base import DType, ModelSpec
from service.errors import ServiceError
from service.wire.v2 import decode_v2

LIMIT = 1 << 16
ROW = bytes(range(12))
SPEC = ModelSpec("small", 6, 10, (0, 3), "silu", DType.BF16)


def value_or_refusal(call, *arguments, statuses=(400,)):
    """The call's value; None where it refuses with a sentence and one of the statuses."""
    try:
        return call(*arguments)
    except ServiceError as error:
        status, sentence = error.status, str(error)
    assert status in statuses
    assert 10 < len(sentence) < 300
    return None


def binary_document(tokens=1, **changes):
    entry = {
        "name": "x",
        "shape": [tokens, 6],
        "datatype": "BF16",
        "parameters": {"binary_data_size": 12 * tokens},
    }
    return {"inputs": [{**entry, **changes}]}


def json_document(**changes):
    return {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 6],
                "datatype": "FP32",
                "data": [1, 2, 3, 4, 5, 6],
                **changes,
            }
        ]
    }


def decode_parts(document, binary=b"", length=-1):
    header = document if isinstance(document, bytes) else json.dumps(document).encode()
    if length == -1:
        length = len(header)
    return decode_v2(memoryview(header + binary), length, SPEC, LIMIT)


def window(nbytes, *, region="r", offset=None) -> dict:
    """Parameters of an input or output in shared memory, as clients write them."""
    place = {"shared_memory_region": region, "shared_memory_byte_size": nbytes}
    return place if offset is None else {**place, "shared_memory_offset": offset}
