import json

from service.engine.base import DType, ModelSpec
from service.wire.v2_documents import (
    Duration,
    ModelStatistics,
    model_config,
    model_metadata,
    repository_index,
    server_metadata,
    statistics,
)
from tests.wire.samples import SPEC


def test_server_metadata():
    assert server_metadata("1.2.3", shared_memory=False) == {
        "name": "tilemlp",
        "version": "1.2.3",
        "extensions": [
            "binary_tensor_data",
            "statistics",
            "model_configuration",
            "model_repository",
        ],
    }


def test_server_metadata_says_what_runs_and_why():
    found = server_metadata(
        "1", shared_memory=True, backend="reference", device="cpu", reason="torch finds no GPU"
    )
    assert found["extensions"][-1] == "system_shared_memory"
    assert found.items() >= {"backend": "reference", "reason": "torch finds no GPU"}.items()
    assert found["name"] == "tilemlp"


def test_server_metadata_says_whose_memory_may_be_shared():
    found = server_metadata("1", shared_memory=True, cuda_shared_memory=True)
    assert found["extensions"][-2:] == ["system_shared_memory", "cuda_shared_memory"]
    assert "cuda_shared_memory" not in found


def test_model_metadata():
    assert model_metadata(SPEC) == {
        "name": "small",
        "versions": ["1"],
        "platform": "tilemlp",
        "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 6]}],
        "outputs": [
            {"name": "mlp", "datatype": "BF16", "shape": [-1, 6]},
            {"name": "gated", "datatype": "BF16", "shape": [-1, 10]},
        ],
    }
    other = ModelSpec("m", 6, 10, (0,), "silu", DType.FP32)
    assert model_metadata(other)["inputs"][0]["datatype"] == "FP32"


def test_model_config_says_the_same_as_the_metadata():
    config, metadata = model_config(SPEC), model_metadata(SPEC)
    assert (config["name"], config["platform"], config["backend"]) == (
        "small",
        "tilemlp",
        "tilemlp",
    )
    assert config["max_batch_size"] == 0
    for ours, theirs in (("input", "inputs"), ("output", "outputs")):
        assert [
            {
                "name": item["name"],
                "datatype": item["data_type"].removeprefix("TYPE_"),
                "shape": item["dims"],
            }
            for item in config[ours]
        ] == metadata[theirs]
    assert config["parameters"] == {
        "activation": {"string_value": "silu"},
        "layers": {"string_value": "0,3"},
    }


def test_repository_index():
    assert repository_index(["a", "b"], ready=True)[1] == {
        "name": "b",
        "version": "1",
        "state": "READY",
        "reason": "",
    }
    entry = repository_index(["a"], ready=False)[0]
    assert entry["state"] == "UNAVAILABLE"
    assert entry["reason"]


def test_statistics_has_what_perf_analyzer_reads():
    durations = [Duration(count, count * 100) for count in range(1, 7)]
    document = statistics([("small", ModelStatistics(1700000000000, 64, 3, *durations))])
    (entry,) = json.loads(json.dumps(document))["model_stats"]
    assert (entry["name"], entry["version"]) == ("small", "1")
    assert (entry["last_inference"], entry["inference_count"], entry["execution_count"]) == (
        1700000000000,
        64,
        3,
    )
    stats = entry["inference_stats"]
    assert list(stats) == [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ]
    assert stats["compute_output"] == {"count": 6, "ns": 600}
    assert stats["cache_miss"] == {"count": 0, "ns": 0}
    assert entry["batch_stats"] == []
    assert statistics([]) == {"model_stats": []}
