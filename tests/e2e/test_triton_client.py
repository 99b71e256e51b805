"""Triton's own HTTP clients, unmodified, against the real server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.e2e.exact import BF16, HIDDEN, INTERMEDIATE, LAYERS
from tests.e2e.scrape import Scrape

pytestmark = pytest.mark.e2e

_DTYPES = {"BF16": BF16, "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4")}


@pytest.fixture
def client(server):
    client = triton.InferenceServerClient(server.url.removeprefix("http://"), concurrency=4)
    yield client
    client.close()


def _x(tokens: int, datatype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((tokens, HIDDEN)).astype(_DTYPES[datatype])


def _input(module, x: np.ndarray, datatype: str, *, binary: bool = True):
    tensor = module.InferInput("x", list(x.shape), datatype)
    tensor.set_data_from_numpy(x, binary_data=binary)
    return [tensor]


def test_health_and_documents(client, model):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model.name)
    assert client.is_model_ready(model.name, "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready(model.name, "2")
    server = client.get_server_metadata()
    assert server["name"] == "tilemlp"
    assert "binary_tensor_data" in server["extensions"]
    for version in ("", "1"):
        metadata = client.get_model_metadata(model.name, version)
        assert metadata["versions"] == ["1"]
        assert metadata["inputs"] == [{"name": "x", "datatype": "BF16", "shape": [-1, HIDDEN]}]
        assert [item["shape"][1] for item in metadata["outputs"]] == [HIDDEN, INTERMEDIATE]
        config = client.get_model_config(model.name, version)
        assert config["max_batch_size"] == 0
        assert config["input"][0]["dims"] == [-1, HIDDEN]
    assert client.get_model_repository_index() == [
        {"name": model.name, "version": "1", "state": "READY", "reason": ""}
    ]


def test_statistics_count_what_was_done(client, model):
    def totals(name: str = "") -> dict:
        (entry,) = client.get_inference_statistics(name)["model_stats"]
        assert (entry["name"], entry["version"]) == (model.name, "1")
        return entry

    before = totals()
    for _ in range(3):
        client.infer(model.name, _input(triton, _x(5, "BF16"), "BF16"), parameters={"layer": 0})
    with pytest.raises(InferenceServerException):
        client.infer(model.name, _input(triton, _x(5, "BF16"), "BF16"), parameters={"layer": 9})
    after = totals(model.name)
    assert after["inference_count"] == before["inference_count"] + 15
    assert after["execution_count"] == before["execution_count"] + 3
    for name, count in (("success", 3), ("fail", 1), ("queue", 3), ("compute_infer", 3)):
        old, new = before["inference_stats"][name], after["inference_stats"][name]
        assert new["count"] == old["count"] + count
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["last_inference"] >= before["last_inference"]


@pytest.mark.parametrize("output", ["mlp", "gated"])
@pytest.mark.parametrize("datatype", list(_DTYPES))
def test_binary_tensors(client, model, datatype, output):
    x = _x(7, datatype)
    result = client.infer(
        model.name,
        _input(triton, x, datatype),
        outputs=[triton.InferRequestedOutput(output)],
        request_id="mine",
        parameters={"layer": 2},
    )
    answer = result.get_response()
    assert answer["id"] == "mine"
    assert answer["model_name"] == model.name
    assert result.get_output(output)["datatype"] == datatype
    y = result.as_numpy(output)
    assert y.dtype == _DTYPES[datatype]
    model.assert_right(y, x, 2, output)


@pytest.mark.parametrize("output", ["mlp", "gated"])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_json_tensors(client, model, binary_in, binary_out, output):
    x = _x(4, "FP32")
    result = client.infer(
        model.name,
        _input(triton, x, "FP32", binary=binary_in),
        outputs=[triton.InferRequestedOutput(output, binary_data=binary_out)],
        parameters={"layer": 1},
    )
    model.assert_right(result.as_numpy(output), x, 1, output)


def test_without_outputs_the_mlp_comes_back(client, model):
    x = _x(3, "FP32")
    result = client.infer(model.name, _input(triton, x, "FP32"), parameters={"layer": 0})
    model.assert_right(result.as_numpy("mlp"), x, 0, "mlp")


def test_layer_as_a_string_and_leading_dimensions(client, model):
    x = _x(6, "FP16").reshape(2, 3, HIDDEN)
    result = client.infer(model.name, _input(triton, x, "FP16"), parameters={"layer": "1"})
    y = result.as_numpy("mlp")
    assert y.shape == x.shape
    model.assert_right(y.reshape(6, HIDDEN), x.reshape(6, HIDDEN), 1, "mlp")


@pytest.mark.parametrize("datatype", list(_DTYPES))
def test_no_rows(client, model, datatype):
    """28: perf_analyzer and Triton stumble over tensors of zero elements."""
    x = _x(0, datatype)
    result = client.infer(model.name, _input(triton, x, datatype), parameters={"layer": 0})
    assert result.get_output("mlp")["shape"] == [0, HIDDEN]


def test_nan_and_infinity_in_json(client, model):
    """29: NaN in an answer is invalid JSON, or 500."""
    x = _x(3, "FP32")
    x[0, 0], x[1, 0] = np.nan, np.inf
    result = client.infer(
        model.name,
        _input(triton, x, "FP32", binary=False),
        outputs=[triton.InferRequestedOutput("mlp", binary_data=False)],
        parameters={"layer": 0},
    )
    y = result.as_numpy("mlp")
    assert np.isnan(y[0]).all()
    assert not np.isfinite(y[1]).all()
    model.assert_right(y[2:], x[2:], 0, "mlp")


@pytest.mark.parametrize("response", [None, "gzip", "deflate"])
@pytest.mark.parametrize("request_", [None, "gzip", "deflate"])
def test_compression_both_ways(client, model, request_, response):
    x = _x(64, "FP16")
    result = client.infer(
        model.name,
        _input(triton, x, "FP16"),
        parameters={"layer": 0},
        request_compression_algorithm=request_,
        response_compression_algorithm=response,
    )
    model.assert_right(result.as_numpy("mlp"), x, 0, "mlp")


def test_async_infer(client, model):
    sent = [_x(seed + 1, "FP32", seed) for seed in range(20)]
    pending = [
        client.async_infer(
            model.name, _input(triton, x, "FP32"), parameters={"layer": seed % LAYERS}
        )
        for seed, x in enumerate(sent)
    ]
    for seed, (x, request) in enumerate(zip(sent, pending, strict=True)):
        model.assert_right(request.get_result().as_numpy("mlp"), x, seed % LAYERS, "mlp")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model_name": "other"}, 404, "model: must be 'tiny-qwen'"),
        ({"model_version": "3"}, 404, "version: must be '1', is '3'"),
        ({"parameters": {"layer": 7}}, 404, "layer: must be resident (0-2), is 7"),
        ({"parameters": {}}, 400, "layer: must be given"),
        ({"outputs": [triton.InferRequestedOutput("y")]}, 400, "must be one of mlp, gated"),
        ({"outputs": [triton.InferRequestedOutput("mlp", class_count=3)]}, 400, "classification"),
        ({"timeout": 1}, 504, "deadline: passed"),
    ],
)
def test_errors_are_sentences(client, model, change, status, words):
    given = {"model_name": model.name, "parameters": {"layer": 0}, **change}
    with pytest.raises(InferenceServerException) as raised:
        client.infer(inputs=_input(triton, _x(2, "FP32"), "FP32"), **given)
    assert words in raised.value.message()
    assert str(status) in raised.value.status()


def test_calls_that_are_not_served_say_so(client, model):
    for call in (
        lambda: client.load_model(model.name),
        lambda: client.unload_model(model.name),
        client.get_trace_settings,
        client.get_log_settings,
    ):
        with pytest.raises(InferenceServerException) as raised:
            call()
        assert "Not Found" in raised.value.message()
    for call, words in (
        (client.get_system_shared_memory_status, "client_shared_memory"),
        (client.get_cuda_shared_memory_status, "client_shared_memory"),
    ):
        with pytest.raises(InferenceServerException, match=words):
            call()


def test_requests_of_the_client_are_counted(server, client, model):
    before = Scrape(server.url)("mlp_requests_total", api="v2", outcome="ok")
    for _ in range(5):
        client.infer(model.name, _input(triton, _x(1, "FP32"), "FP32"), parameters={"layer": 0})
    assert Scrape(server.url)("mlp_requests_total", api="v2", outcome="ok") == before + 5


def test_aio_client(server, model):
    """It asks for `gzip, deflate, br` by itself, which must not make us compress tensors."""

    async def use() -> None:
        async with triton_aio.InferenceServerClient(server.url.removeprefix("http://")) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready(model.name)
            assert (await client.get_server_metadata())["name"] == "tilemlp"
            assert (await client.get_model_metadata(model.name))["name"] == model.name
            assert (await client.get_model_config(model.name))["name"] == model.name
            assert (await client.get_model_repository_index())[0]["state"] == "READY"
            assert "model_stats" in await client.get_inference_statistics()
            await asyncio.gather(*(infer(client, seed) for seed in range(12)))
            with pytest.raises(InferenceServerException, match="layer: must be resident"):
                await client.infer(
                    model.name,
                    _input(triton_aio, _x(1, "FP32"), "FP32"),
                    parameters={"layer": 9},
                )

    async def infer(client: triton_aio.InferenceServerClient, seed: int) -> None:
        datatype = list(_DTYPES)[seed % 3]
        x = _x(100 + seed, datatype, seed)
        result = await client.infer(
            model.name,
            _input(triton_aio, x, datatype),
            outputs=[triton_aio.InferRequestedOutput("gated")],
            parameters={"layer": seed % LAYERS},
            request_compression_algorithm="gzip" if seed % 2 else None,
            response_compression_algorithm="deflate" if seed % 4 == 3 else None,
        )
        model.assert_right(result.as_numpy("gated"), x, seed % LAYERS, "gated")

    asyncio.run(use())
