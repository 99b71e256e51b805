"""27: wrong lengths and broken JSON crash the server. Here each is a 400, and it lives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, expected
from tests.routes.bodies import rows, v2_body, v2_decode

_PATH = "/v2/models/tiny/infer"
_LENGTH = "inference-header-content-length"
_X = rows(2)
_BODY, _HEADERS = v2_body(_X)
_J = int(_HEADERS[_LENGTH])


@pytest.fixture(autouse=True)
def _alive_afterwards(service):
    yield
    wait_at_rest(service.url)
    answer = service.client.post(_PATH, content=_BODY, headers=_HEADERS)
    np.testing.assert_array_equal(v2_decode(answer), expected(_X, 0))


def _assert_invalid(service, content: bytes, headers: dict[str, str]) -> str:
    before = Scrape(service.url).outcomes("v2").get("invalid", 0)
    answer = service.client.post(_PATH, content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "invalid"
    assert len(answer.content) < 500
    assert Scrape(service.url).outcomes("v2")["invalid"] == before + 1
    return answer.json()["error"]


@pytest.mark.parametrize(
    "value",
    ["-1", "abc", "", "1.5", "0x10", "+5", "1e2", "٣", "9" * 30, str(2**31), "0", "1"],
)
def test_header_length(service, value):
    assert _assert_invalid(service, _BODY, {_LENGTH: value.encode()})


@pytest.mark.parametrize("length", [_J - 1, _J + 1, len(_BODY), len(_BODY) + 1])
def test_header_length_that_is_off_by_some(service, length):
    assert _assert_invalid(service, _BODY, {_LENGTH: str(length)})


@pytest.mark.parametrize("length", [1, 2, _J // 2, _J - 1])
def test_truncated_json(service, length):
    assert "JSON" in _assert_invalid(service, _BODY[:length], {})


@pytest.mark.parametrize(
    "size", [0, 127, 129, -128, 128.0, "128", True, 2**31, 2**63, 2**64, -1, [128], {}, 10**4000]
)
def test_binary_data_size(service, size):
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [2, HIDDEN],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": size},
                }
            ]
        }
    ).encode()
    error = _assert_invalid(service, text + _X.tobytes(), {_LENGTH: str(len(text))})
    assert "binary_data_size" in error


def test_bytes_behind_the_tensor(service):
    assert "129 bytes" in _assert_invalid(service, _BODY + b"x", _HEADERS)


def test_missing_bytes_of_the_tensor(service):
    assert "127 bytes" in _assert_invalid(service, _BODY[:-1], _HEADERS)


def test_bytes_behind_a_json_tensor(service):
    body, _ = v2_body(_X, binary=False)
    _assert_invalid(service, body + b"\0\0\0\0", {_LENGTH: str(len(body))})
    _assert_invalid(service, body + b"\0\0\0\0", {})


@pytest.mark.parametrize(
    "shape",
    [
        [2**31, 2**31, HIDDEN],
        [2**62, HIDDEN],
        [2**64, HIDDEN],
        [10**90, HIDDEN],
        [-2, HIDDEN],
        [-2, -HIDDEN],
        [0, 2**60, HIDDEN],
        [2, HIDDEN + 1],
        [2],
        [],
        [1] * 40 + [HIDDEN],
        [2.0, HIDDEN],
        ["2", HIDDEN],
        [True, HIDDEN],
        [[2], HIDDEN],
        None,
        "2,16",
        {"0": 2},
    ],
)
def test_shape(service, shape):
    body, headers = v2_body(_X, shape=shape)
    assert "shape" in _assert_invalid(service, body, headers)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "1",
        "{}",
        '{"inputs": {}}',
        '{"inputs": [1]}',
        '{"inputs": [{}]}',
        '{"inputs": [{"name": "x"}, {"name": "x"}]}',
        '{"inputs": [], "inputs": []}',
        '{"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 16], "data": []}]}',
        '{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 16], "data": []}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": []}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": 5}]}',
        "[" * 100_000,
        '{"a":' * 20_000,
        "\ufeff{}",
        '"' + "x" * 1000,
        "1" * 10_000,
        '{"inputs": ' + "9" * 5000 + "}",
    ],
    ids=range(20),
)
def test_json(service, text):
    _assert_invalid(service, text.encode(), {})


def test_not_utf8(service):
    _assert_invalid(service, b'{"inputs": "\xff\xfe"}', {})


@pytest.mark.parametrize(
    "parameters",
    [
        {"layer": -1},
        {"layer": 1.5},
        {"layer": [0]},
        {"timeout": -1},
        {"timeout": "soon"},
        {"timeout": 2**63},
        {"binary_data_output": 1},
    ],
)
def test_parameters(service, parameters):
    body, headers = v2_body(_X, parameters=parameters)
    assert "parameters" in _assert_invalid(service, body, headers)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_is_never_our_fault(service, seed):
    """Bytes flipped, dropped and doubled: 200 where the tensor was hit, else 4xx; never 5xx."""
    generator = np.random.default_rng(seed)
    for _ in range(25):
        body = bytearray(_BODY)
        for _ in range(generator.integers(1, 6)):
            position = int(generator.integers(len(body)))
            match generator.integers(3):
                case 0:
                    body[position] = int(generator.integers(256))
                case 1:
                    del body[position : position + int(generator.integers(1, 40))]
                case 2:
                    body[position:position] = body[: int(generator.integers(1, 40))]
        length = int(generator.integers(-5, 6)) + _J
        answer = service.client.post(_PATH, content=bytes(body), headers={_LENGTH: str(length)})
        assert answer.status_code in (200, 400, 404, 413), (answer.status_code, bytes(body))
