"""POST /mlp in every format: the answer has the request's form unless Accept says otherwise."""

from __future__ import annotations

import re

import httpx
import numpy as np
import pytest

from service.engine.base import Output
from tests.engines import HIDDEN, INTERMEDIATE, FakeEngine, expected, spec
from tests.routes.bodies import JSON, NPY, RAW, decode, post, rows
from tests.servers import ServerThread


@pytest.mark.parametrize("output", list(Output))
@pytest.mark.parametrize(
    ("media_type", "dtype"),
    [(RAW, "float32"), (RAW, "float16"), (NPY, "float32"), (NPY, "float16"), (JSON, "float32")],
)
def test_answer_has_the_format_and_dtype_of_the_request(service, media_type, dtype, output):
    x = rows(5, dtype=dtype)
    answer = post(service.client, x, media_type, f"?output={output.value}")
    y = decode(answer)
    assert answer.headers["content-type"] == media_type
    assert y.dtype == x.dtype
    assert y.shape == (5, HIDDEN if output is Output.MLP else INTERMEDIATE)
    np.testing.assert_array_equal(y, expected(x, 0, output))
    assert answer.headers["x-mlp-kernel"] == "fake"
    assert int(answer.headers["x-mlp-batch-tokens"]) == 5


@pytest.mark.parametrize("media_type", [RAW, NPY, JSON])
def test_leading_dimensions_come_back(service, media_type):
    x = rows(6).reshape(2, 3, HIDDEN)
    y = decode(post(service.client, x, media_type))
    assert y.shape == (2, 3, HIDDEN)
    np.testing.assert_array_equal(y, expected(x, 0))


def test_raw_rows_need_no_shape(service):
    x = rows(3)
    answer = service.client.post("/mlp", content=x.tobytes(), headers={"x-tensor-dtype": "fp32"})
    np.testing.assert_array_equal(decode(answer), expected(x, 0))


@pytest.mark.parametrize("media_type", [RAW, NPY, JSON])
def test_no_rows_in_no_rows_out(service, media_type):
    """28: a tensor of zero elements ends the process, or is dropped on the way."""
    before = len(service.engine.batches)
    answer = post(service.client, np.empty((0, HIDDEN), "float32"), media_type)
    assert decode(answer).shape == (0, HIDDEN)
    assert answer.headers["x-mlp-kernel"] == "none"
    assert len(service.engine.batches) == before, "the engine was asked to compute nothing"


@pytest.mark.parametrize(
    ("media_type", "accept", "answer_type", "dtype"),
    [
        (RAW, "*/*", RAW, "fp16"),
        (RAW, JSON, JSON, "fp32"),
        (RAW, NPY, NPY, "fp16"),
        (RAW, f"{RAW};dtype=fp32", RAW, "fp32"),
        (RAW, f"text/html, {JSON};q=0.5, {NPY};q=0.8", NPY, "fp16"),
        (NPY, f"{NPY};dtype=fp32", NPY, "fp32"),
        (NPY, f"{RAW};q=0.1, application/*;q=0.1", NPY, "fp16"),
        (JSON, RAW, RAW, "fp32"),
        (JSON, f"{RAW};dtype=fp16", RAW, "fp16"),
    ],
)
def test_accept_chooses_the_answer(service, media_type, accept, answer_type, dtype):
    x = rows(2, dtype="float32" if media_type == JSON else "float16")
    answer = post(service.client, x, media_type, accept=accept)
    np.testing.assert_array_equal(decode(answer), expected(x, 0))
    assert answer.headers["content-type"] == answer_type
    assert answer.headers["x-tensor-dtype"] == dtype


def test_accept_that_cannot_be_met_is_406(service):
    answer = post(service.client, rows(1), accept="text/html, image/png")
    assert answer.status_code == 406
    assert answer.json()["code"] == "not_acceptable"


def test_each_layer_answers_for_itself_and_has_to_be_named():
    engine = FakeEngine(spec(layers=(0, 1, 2, 7)))
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
        x = rows(2)
        for layer in (0, 1, 2, 7):
            np.testing.assert_array_equal(
                decode(post(client, x, query=f"?model=tiny&layer={layer}")), expected(x, layer)
            )
        missing = post(client, x)
        absent = post(client, x, query="?layer=3")
    assert (missing.status_code, missing.json()["code"]) == (400, "invalid")
    assert "4 layers are resident" in missing.json()["error"]
    assert (absent.status_code, absent.json()["code"]) == (404, "not_found")
    assert absent.json()["error"] == "layer: must be resident (0-2, 7), is 3"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("media_type", [RAW, NPY, JSON])
def test_numbers_that_json_lacks_are_answered(service, media_type, value):
    """29: a NaN in the output makes invalid JSON, or 500 "Out of range float values"."""
    x = rows(3)
    x[1, 2] = value
    answer = post(service.client, x, media_type)
    np.testing.assert_array_equal(decode(answer), expected(x, 0))
    if media_type == JSON:
        token = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        assert re.search(rf"[\[,]{token}[\],]", answer.text)


def test_nan_bits_survive_a_binary_round_trip(service):
    """29: a binary answer keeps the bits, payload and all."""
    x = rows(1)
    x.view("uint32")[0, 3] = 0x7FC12345
    y = decode(post(service.client, x))
    assert y.view("uint32")[0, 3] == 0x7FC12345


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("?layer=x", 400, "layer: must be a layer number"),
        ("?layer=-1", 400, "layer: must be a layer number"),
        ("?output=down", 400, "output: must be mlp or gated, is 'down'"),
        ("?layers=0", 400, "parameters are model, layer, output, got 'layers'"),
        ("?layer=0&layer=0", 400, "one is repeated"),
        ("?layer=5", 404, "layer: must be resident (0), is 5"),
        ("?model=other", 404, "model: must be 'tiny'"),
    ],
)
def test_wrong_query_names_parameter_rule_and_value(service, query, status, words):
    answer = post(service.client, rows(1), query=query)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"content-type": "text/csv"}, 415, "Content-Type: must be one of"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "curl"),
        ({"content-encoding": "br"}, 415, "Content-Encoding: must be identity, gzip or deflate"),
        ({"content-encoding": "gzip, gzip"}, 415, "Content-Encoding"),
        ({"x-tensor-dtype": "fp64"}, 400, "X-Tensor-Dtype: must be one of bf16, fp16, fp32"),
        ({"x-tensor-shape": "2,8"}, 400, "hidden_size 16"),
        ({"x-tensor-shape": "3,16"}, 400, "must be 192 bytes"),
        ({"x-tensor-shape": "two"}, 400, "X-Tensor-Shape: must be like"),
        ({"x-request-timeout-ms": "0"}, 400, "X-Request-Timeout-Ms: must be a positive"),
        ({"x-request-timeout-ms": "1.5"}, 400, "X-Request-Timeout-Ms: must be a positive"),
    ],
)
def test_wrong_header_names_header_rule_and_value(service, headers, status, words):
    given = {"content-type": RAW, "x-tensor-dtype": "fp32", **headers}
    answer = service.client.post("/mlp", content=rows(2).tobytes(), headers=given)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_long_words_of_a_client_are_not_repeated_whole(service):
    answer = post(service.client, rows(1), query="?model=" + "m" * 10_000)
    assert answer.status_code == 404
    assert len(answer.content) < 300


def test_server_timing_is_what_browsers_parse(service):
    answer = post(service.client, rows(1))
    entries = dict(
        re.fullmatch(r"([a-z]+);dur=(\d+\.\d+)", entry.strip()).groups()
        for entry in answer.headers["server-timing"].split(",")
    )
    assert entries.keys() == {"queue", "execute"}
    assert all(0 <= float(value) < 30_000 for value in entries.values())
