"""What a checkpoint's config.json says about its MLPs, family by family.

A family is a `model_type` whose transformers module computes
`down_proj(act(gate_proj(x)) * up_proj(x))` and names its tensors `layers.{i}.mlp.…`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.engine.base import Activation
from service.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Family:
    """How a `model_type` stores its MLPs.

    Attributes:
        fused: One `gate_up_proj` tensor [2N, K], gate first, instead of `gate_proj` and `up_proj`.
        activation_key: Where config.json names the activation.
        default_activation: What an absent key means.
        aliases: Values of that key which mean another activation in this family.
    """

    fused: bool = False
    activation_key: str = "hidden_act"
    default_activation: str = "silu"
    aliases: Mapping[str, str] | None = None


_SILU = Family()
_FUSED = Family(fused=True)
_GEGLU = Family(activation_key="hidden_activation", default_activation="gelu_pytorch_tanh")

FAMILIES: Mapping[str, Family] = {
    "cohere": _SILU,
    "cohere2": _SILU,
    "ernie4_5": _SILU,
    "exaone4": _SILU,
    # Gemma's first releases say "gelu" and mean the tanh form; transformers reads them so too.
    "gemma": Family(default_activation="gelu_pytorch_tanh", aliases={"gelu": "gelu_pytorch_tanh"}),
    "gemma2": _GEGLU,
    "gemma3_text": _GEGLU,
    "glm": _FUSED,
    "glm4": _FUSED,
    "granite": _SILU,
    "helium": _SILU,
    "hunyuan_v1_dense": _SILU,
    "llama": _SILU,
    "mistral": _SILU,
    "olmo": _SILU,
    "olmo2": _SILU,
    "olmo3": _SILU,
    "phi3": _FUSED,
    "qwen2": _SILU,
    "qwen3": _SILU,
    "seed_oss": _SILU,
    "smollm3": _SILU,
    "stablelm": _SILU,
}

# gelu_new and gelu_fast are the same function as gelu_pytorch_tanh, written differently.
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}

_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

_KERNEL_GRANULARITY = 8
# No model is a thousandth of that; a typing error is no reason to run out of memory.
_LARGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """The part of config.json that the MLPs need, already checked."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    activation: Activation
    fused: bool


def read_mlp_config(path: Path) -> MlpConfig:
    """Read and check a config.json.

    A multimodal checkpoint whose `text_config` is of a known family counts as that family.

    Raises:
        CheckpointError: the file is missing or malformed, or describes MLPs that are not served.
    """
    config = read_json_object(path)
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else {}
    chosen = config
    if config.get("model_type") not in FAMILIES and text.get("model_type") in FAMILIES:
        chosen = text
    for part in (config, text):
        _refuse_experts(part)
    for part in (config, chosen):
        _refuse_quantised(part)
    family = _family(chosen)
    if chosen.get("mlp_bias"):
        raise CheckpointError(
            f"config.json mlp_bias: must be false, since biases are not served, "
            f"is {chosen['mlp_bias']!r}"
        )
    return MlpConfig(
        hidden_size=_width(chosen, "hidden_size"),
        intermediate_size=_width(chosen, "intermediate_size"),
        num_layers=_positive(chosen, "num_hidden_layers"),
        activation=_activation(chosen, family),
        fused=family.fused,
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file whose top level is an object.

    Raises:
        CheckpointError: the file cannot be read or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"model: {path.name} must be readable, {path} is not: {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"model: {path} must be JSON, is not: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(
            f"model: {path} must hold a JSON object, holds {type(content).__name__}"
        )
    return content


def _refuse_experts(config: Mapping[str, Any]) -> None:
    for key in _EXPERT_KEYS:
        count = config.get(key)
        if isinstance(count, list) or (isinstance(count, int) and count > 1):
            raise CheckpointError(
                f"config.json {key}: must be absent, since mixture-of-experts layers are not "
                f"served, is {count}"
            )
    model_type = str(config.get("model_type", ""))
    if "moe" in model_type or "mixtral" in model_type:
        raise CheckpointError(
            f"config.json model_type: must be a dense model, since mixture-of-experts layers are "
            f"not served, is {model_type!r}"
        )


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        details = config.get(key)
        if details is not None:
            method = details.get("quant_method", details) if isinstance(details, dict) else details
            raise CheckpointError(
                f"config.json {key}: must be absent, since quantised weights are not served, "
                f"is {method!r}"
            )


def _family(config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise CheckpointError(
            f"config.json model_type: must be one of {', '.join(FAMILIES)}, is {model_type!r}"
        )
    return family


def _activation(config: Mapping[str, Any], family: Family) -> Activation:
    name = config.get(family.activation_key)
    name = family.default_activation if name is None else name
    if family.aliases and isinstance(name, str):
        name = family.aliases.get(name, name)
    activation = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    if activation is None:
        raise CheckpointError(
            f"config.json {family.activation_key}: must be one of {', '.join(_ACTIVATIONS)}, "
            f"is {name!r}"
        )
    return activation


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise CheckpointError(f"config.json {key}: must be a positive integer, is {value!r:.80}")
    return value


def _width(config: Mapping[str, Any], key: str) -> int:
    value = _positive(config, key)
    if value % _KERNEL_GRANULARITY:
        raise CheckpointError(
            f"config.json {key}: must be a multiple of {_KERNEL_GRANULARITY} for the kernels, "
            f"is {value}"
        )
    return value
