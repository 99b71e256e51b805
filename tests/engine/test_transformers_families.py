"""Every family against transformers' own modules, through a checkpoint that transformers wrote."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from service.engine.base import Output
from service.engine.families import FAMILIES
from service.engine.reference import ReferenceEngine
from service.engine.weights import load_model
from service.errors import CheckpointError
from tests.accuracy import excess_over_one_percent, relative_deviation
from tests.engine.batches import answers, make_batch

CPU = torch.device("cpu")
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.disable_progress_bar()


def widen(model: nn.Module) -> None:
    """Spread MLP weights so far that the activation's bend decides, and gate and up unlike."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".mlp." in name:
                weight.normal_(0.0, 0.5 if "up_proj" in name else 0.3)
            if "gate_up_proj" in name:
                weight[: len(weight) // 2] *= 0.5


def make_causal_lm(model_type: str, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **TINY, **changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    widen(model)
    return model


def draw(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, 32, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def run_module(mlp: nn.Module, x: torch.Tensor) -> dict[Output, torch.Tensor]:
    """What a transformers MLP answers, and what its down projection is given."""
    seen = []
    hook = mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    answer = mlp(x)
    hook.remove()
    return {Output.MLP: answer, Output.GATED: seen[0]}


def assert_same(folder: Path, layers: nn.ModuleList) -> None:
    """FP32 weights: 1e-5 of the row's largest value, on every layer and output."""
    engine = ReferenceEngine(load_model(folder, device=CPU), CPU)
    assert engine.model.layers == (0, 1)
    x = draw(9)
    for index, layer in enumerate(layers):
        for output, expected in run_module(layer.mlp, x).items():
            batch = make_batch(engine.model, [x], layer=index, output=output)
            engine.run(batch)
            assert relative_deviation(answers(batch)[0], expected) < 1e-5


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fp32_weights_give_what_transformers_gives(tmp_path: Path, model_type: str) -> None:
    model = make_causal_lm(model_type)
    model.save_pretrained(tmp_path)
    assert_same(tmp_path, model.model.layers)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral", "gemma", "phi3"])
def test_bf16_weights_are_within_one_percent_of_fp64(tmp_path: Path, model_type: str) -> None:
    model = make_causal_lm(model_type).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    engine = ReferenceEngine(load_model(tmp_path, device=CPU), CPU)
    assert engine.model.dtype.value == "bf16"
    x = draw(50).bfloat16()
    exact = run_module(copy.deepcopy(model.model.layers[1].mlp).double(), x.double())
    fp32 = run_module(copy.deepcopy(model.model.layers[1].mlp).float(), x.float())
    for output in Output:
        batch = make_batch(engine.model, [x], layer=1, output=output)
        engine.run(batch)
        assert excess_over_one_percent(answers(batch)[0], exact[output], fp32[output]).max() <= 0


@pytest.mark.parametrize("hidden_act", ["relu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"])
def test_activations_are_transformers_own(tmp_path: Path, hidden_act: str) -> None:
    model = make_causal_lm("llama", hidden_act=hidden_act)
    model.save_pretrained(tmp_path)
    assert_same(tmp_path, model.model.layers)


def test_gemmas_legacy_gelu_is_the_tanh_form(tmp_path: Path) -> None:
    """Not asked of from_pretrained: some releases of transformers lost this translation."""
    model = make_causal_lm("gemma")
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text()
    assert '"gelu_pytorch_tanh"' in text
    config.write_text(text.replace('"gelu_pytorch_tanh"', '"gelu"'))
    assert_same(tmp_path, model.model.layers)


def test_a_base_model_without_a_head_is_served(tmp_path: Path) -> None:
    model = make_causal_lm("qwen2").model
    model.save_pretrained(tmp_path)
    assert_same(tmp_path, model.layers)


def test_shards_written_by_transformers_are_served(tmp_path: Path) -> None:
    model = make_causal_lm("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="12KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_same(tmp_path, model.model.layers)


def test_the_language_model_of_a_multimodal_gemma_is_served(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=TINY, vision_config=vision)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    widen(model)
    model.save_pretrained(tmp_path)
    assert_same(tmp_path, model.model.language_model.layers)


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "qwen3_moe", "phimoe"])
def test_experts_written_by_transformers_are_refused(tmp_path: Path, model_type: str) -> None:
    transformers.AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="since mixture-of-experts layers are not served"):
        load_model(tmp_path, device=CPU)
