"""config.json: what is read from it and what is refused, with the sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.engine.families import FAMILIES, MlpConfig, read_mlp_config
from service.errors import CheckpointError

QWEN = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
}


def read(folder: Path, config: object) -> MlpConfig:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_mlp_config(path)


def test_reads_sizes_layers_and_activation(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN) == MlpConfig(16, 32, 3, "silu", fused=False)


@pytest.mark.parametrize(
    ("model_type", "changes", "activation"),
    [
        ("llama", {"hidden_act": "swish"}, "silu"),
        ("llama", {"hidden_act": "relu"}, "relu"),
        ("llama", {"hidden_act": "gelu_new"}, "gelu_tanh"),
        ("llama", {"hidden_act": None}, "silu"),
        ("gemma", {"hidden_act": "gelu"}, "gelu_tanh"),
        ("gemma", {"hidden_act": None}, "gelu_tanh"),
        ("gemma2", {"hidden_activation": "gelu_pytorch_tanh"}, "gelu_tanh"),
        # Gemma 2 reads hidden_activation alone.
        ("gemma2", {"hidden_act": "relu"}, "gelu_tanh"),
        ("gemma3_text", {"hidden_activation": None}, "gelu_tanh"),
    ],
)
def test_activation_is_what_the_family_makes_of_the_key(
    tmp_path: Path, model_type: str, changes: dict[str, object], activation: str
) -> None:
    config = {**QWEN, "model_type": model_type, **changes}
    assert read(tmp_path, config).activation == activation


def test_text_config_of_a_multimodal_model_counts(tmp_path: Path) -> None:
    wrapper = {"model_type": "gemma3", "text_config": {**QWEN, "model_type": "gemma3_text"}}
    assert read(tmp_path, wrapper) == MlpConfig(16, 32, 3, "gelu_tanh", fused=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            f"config.json model_type: must be one of {', '.join(FAMILIES)}, is 'gpt2'",
        ),
        (
            {"model_type": None},
            f"config.json model_type: must be one of {', '.join(FAMILIES)}, is None",
        ),
        (
            {"model_type": "qwen2_moe"},
            "config.json model_type: must be a dense model, since mixture-of-experts layers are "
            "not served, is 'qwen2_moe'",
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 8},
            "config.json num_local_experts: must be absent, since mixture-of-experts layers are "
            "not served, is 8",
        ),
        (
            {"num_experts": 64},
            "config.json num_experts: must be absent, since mixture-of-experts layers are not "
            "served, is 64",
        ),
        (
            {"model_type": "deepseek_v3", "n_routed_experts": 256},
            "config.json n_routed_experts: must be absent, since mixture-of-experts layers are "
            "not served, is 256",
        ),
        (
            {"model_type": "llama4", "text_config": {"num_local_experts": 16}},
            "config.json num_local_experts: must be absent, since mixture-of-experts layers are "
            "not served, is 16",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "config.json quantization_config: must be absent, since quantised weights are not "
            "served, is 'gptq'",
        ),
        (
            {"compression_config": "pack"},
            "config.json compression_config: must be absent, since quantised weights are not "
            "served, is 'pack'",
        ),
        (
            {"mlp_bias": True},
            "config.json mlp_bias: must be false, since biases are not served, is True",
        ),
        (
            {"hidden_act": "gelu"},
            "config.json hidden_act: must be one of silu, swish, gelu_pytorch_tanh, gelu_new, "
            "gelu_fast, relu, is 'gelu'",
        ),
        (
            {"hidden_act": ["silu"]},
            "config.json hidden_act: must be one of silu, swish, gelu_pytorch_tanh, gelu_new, "
            "gelu_fast, relu, is ['silu']",
        ),
        (
            {"model_type": "gemma2", "hidden_activation": "gelu"},
            "config.json hidden_activation: must be one of silu, swish, gelu_pytorch_tanh, "
            "gelu_new, gelu_fast, relu, is 'gelu'",
        ),
        ({"hidden_size": None}, "config.json hidden_size: must be a positive integer, is None"),
        ({"hidden_size": True}, "config.json hidden_size: must be a positive integer, is True"),
        (
            {"num_hidden_layers": 0},
            "config.json num_hidden_layers: must be a positive integer, is 0",
        ),
        (
            {"intermediate_size": [32, 64]},
            "config.json intermediate_size: must be a positive integer, is [32, 64]",
        ),
        (
            {"hidden_size": 20},
            "config.json hidden_size: must be a multiple of 8 for the kernels, is 20",
        ),
        (
            {"intermediate_size": 36},
            "config.json intermediate_size: must be a multiple of 8 for the kernels, is 36",
        ),
    ],
)
def test_refuses_what_is_not_served(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read(tmp_path, {**QWEN, **changes})
    assert str(refusal.value) == message


def test_one_expert_is_a_dense_model(tmp_path: Path) -> None:
    assert read(tmp_path, {**QWEN, "num_experts": 1}).num_layers == 3


def test_refuses_a_missing_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json must be readable.*No such file"):
        read_mlp_config(tmp_path / "config.json")


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe{}", b"", b"[" * 100_000])
def test_refuses_malformed_json(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json must be JSON, is not: "):
        read_mlp_config(tmp_path / "config.json")


def test_refuses_json_that_is_no_object(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must hold a JSON object, holds list"):
        read(tmp_path, [1])
