"""The Open Inference Protocol v2's documents about server, models and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from service.engine.base import ModelSpec, Output
from service.wire.v2 import MODEL_VERSION
from service.wire.v2_input import DATATYPES, INPUT

PLATFORM = "tilemlp"
EXTENSIONS = ("binary_tensor_data", "statistics", "model_configuration", "model_repository")
SHARED_MEMORY = "system_shared_memory"
CUDA_SHARED_MEMORY = "cuda_shared_memory"


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and for how long altogether."""

    count: int
    ns: int


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Totals of one model since start. Durations count requests, but executions for compute.

    Attributes:
        last_inference_ms: Time of the last request, milliseconds since the epoch; 0 for never.
        inference_count: Tokens of successful requests.
        execution_count: Batches.
        success: Successful requests, from arrival to answer.
        fail: Failed requests.
        queue: Queue delays.
        compute_input: Copies to the device.
        compute_infer: Kernels.
        compute_output: Copies from the device.
    """

    last_inference_ms: int
    inference_count: int
    execution_count: int
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


def server_metadata(
    version: str, *, shared_memory: bool, cuda_shared_memory: bool = False, **ours: str
) -> dict[str, object]:
    """Body of `GET /v2`; `ours` is what the protocol does not have, such as the backend."""
    extensions = list(EXTENSIONS)
    if shared_memory:
        extensions.append(SHARED_MEMORY)
    if cuda_shared_memory:
        extensions.append(CUDA_SHARED_MEMORY)
    return {"name": PLATFORM, "version": version, "extensions": extensions, **ours}


def model_metadata(model: ModelSpec) -> dict[str, object]:
    """Body of `GET /v2/models/{name}`; -1 is any number of tokens."""
    datatype = DATATYPES[model.dtype]
    return {
        "name": model.name,
        "versions": [MODEL_VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": INPUT, "datatype": datatype, "shape": [-1, model.hidden_size]}],
        "outputs": [
            {"name": output.value, "datatype": datatype, "shape": [-1, model.width(output)]}
            for output in Output
        ],
    }


def model_config(model: ModelSpec) -> dict[str, object]:
    """Body of `GET /v2/models/{name}/config`, in the words of Triton's ModelConfig message.

    max_batch_size 0 says that the shapes are whole: Triton's clients would otherwise put a batch
    dimension in front.
    """
    datatype = f"TYPE_{DATATYPES[model.dtype]}"
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [
            {
                "name": INPUT,
                "data_type": datatype,
                "format": "FORMAT_NONE",
                "dims": [-1, model.hidden_size],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
            }
        ],
        "output": [
            {
                "name": output.value,
                "data_type": datatype,
                "dims": [-1, model.width(output)],
                "label_filename": "",
                "is_shape_tensor": False,
            }
            for output in Output
        ],
        "parameters": {
            "activation": {"string_value": model.activation},
            "layers": {"string_value": ",".join(map(str, model.layers))},
        },
    }


def repository_index(names: Iterable[str], ready: bool) -> list[dict[str, object]]:
    """Body of `POST /v2/repository/index`."""
    state, reason = ("READY", "") if ready else ("UNAVAILABLE", "the server is not ready")
    return [
        {"name": name, "version": MODEL_VERSION, "state": state, "reason": reason} for name in names
    ]


def statistics(models: Iterable[tuple[str, ModelStatistics]]) -> dict[str, object]:
    """Body of `GET /v2/models/stats` and `/v2/models/{name}/stats`. There is no cache."""
    return {"model_stats": [_statistics_entry(name, totals) for name, totals in models]}


def _statistics_entry(name: str, totals: ModelStatistics) -> dict[str, object]:
    never = Duration(0, 0)
    durations = {
        "success": totals.success,
        "fail": totals.fail,
        "queue": totals.queue,
        "compute_input": totals.compute_input,
        "compute_infer": totals.compute_infer,
        "compute_output": totals.compute_output,
        "cache_hit": never,
        "cache_miss": never,
    }
    return {
        "name": name,
        "version": MODEL_VERSION,
        "last_inference": totals.last_inference_ms,
        "inference_count": totals.inference_count,
        "execution_count": totals.execution_count,
        "inference_stats": {key: asdict(duration) for key, duration in durations.items()},
        "batch_stats": [],
    }
