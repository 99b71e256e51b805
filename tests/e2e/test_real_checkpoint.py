"""Checkpoints that transformers wrote, served by the real process, against transformers' answers.

A model runs on token ids; what enters and leaves each MLP is captured, the same states are
POSTed, and the answers compared: FP32 weights within 1e-5 of the row's largest value, bf16
weights within 1 % of FP64 for every element, up to the floor of an FP32 computation.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tests.accuracy import excess_over_one_percent, relative_deviation
from tests.servers import ServerProcess

pytestmark = pytest.mark.e2e

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 136,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Qwen2.5-0.5B but for the number of layers and the vocabulary.
QWEN_05B = {
    **SMALL,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "head_dim": 64,
}
CHECKPOINTS = {
    "qwen2-0.5b": ("qwen2", QWEN_05B, "15MB"),
    "llama": ("llama", SMALL, "5GB"),
    "mistral": ("mistral", SMALL, "60KB"),
    "gemma": ("gemma", SMALL, "5GB"),
    "phi3": ("phi3", SMALL, "60KB"),
}

States = dict[str, torch.Tensor]


class Served:
    """A model as transformers runs it, and the URL under which its MLPs are served."""

    def __init__(self, model: nn.Module, url: str) -> None:
        self.url = url
        self.mlps = [layer.mlp for layer in model.model.layers]
        self.states = capture(model, self.mlps)


def make_model(model_type: str, shape: dict[str, int], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".mlp." in name:
                # Wide enough for the activation's bend to matter, and up unlike gate.
                weight.normal_(0.0, 0.06)
            if "up_proj" in name:
                weight[-shape["intermediate_size"] :] *= 3
    return model.to(dtype)


@torch.no_grad()
def capture(model: nn.Module, mlps: list[nn.Module]) -> list[States]:
    """What entered each MLP, its down projection, and what left it, as [tokens, width]."""
    seen: list[States] = [{} for _ in mlps]
    hooks = []
    for states, mlp in zip(seen, mlps, strict=True):

        def into(_: nn.Module, args: tuple[torch.Tensor], states: States = states) -> None:
            states["x"] = args[0].flatten(0, 1)

        def down(_: nn.Module, args: tuple[torch.Tensor], states: States = states) -> None:
            states["gated"] = args[0].flatten(0, 1)

        def out(_: nn.Module, __: object, y: torch.Tensor, states: States = states) -> None:
            states["mlp"] = y.flatten(0, 1)

        hooks += [
            mlp.register_forward_pre_hook(into),
            mlp.down_proj.register_forward_pre_hook(down),
            mlp.register_forward_hook(out),
        ]
    ids = torch.randint(3, 64, (3, 11), generator=torch.Generator().manual_seed(4))
    model(input_ids=ids)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest) -> tuple[str, dict[str, int], str]:
    transformers.logging.disable_progress_bar()
    return CHECKPOINTS[request.param]


def serve(
    folder: Path, checkpoint: tuple[str, dict[str, int], str], dtype: torch.dtype
) -> Iterator[Served]:
    model_type, shape, shard_size = checkpoint
    model = make_model(model_type, shape, dtype)
    model.save_pretrained(folder / "ckpt", max_shard_size=shard_size)
    shards = list((folder / "ckpt").glob("*.safetensors"))
    assert (len(shards) > 2) == (shard_size != "5GB")
    with ServerProcess(folder / "log", model=folder / "ckpt", device="cpu") as server:
        yield Served(model, server.url)
        assert server.terminate() == 0


@pytest.fixture(scope="module")
def fp32(
    checkpoint: tuple[str, dict[str, int], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("fp32"), checkpoint, torch.float32)


@pytest.fixture(scope="module")
def bf16(
    checkpoint: tuple[str, dict[str, int], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("bf16"), checkpoint, torch.bfloat16)


def post_npy(url: str, layer: int, output: str, x: torch.Tensor) -> torch.Tensor:
    body = io.BytesIO()
    np.save(body, x.numpy())
    reply = httpx.post(
        f"{url}/mlp",
        params={"model": "ckpt", "layer": layer, "output": output},
        content=body.getvalue(),
        headers={"Content-Type": "application/x-npy"},
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    return torch.from_numpy(np.load(io.BytesIO(reply.content)))


def post_raw(url: str, layer: int, output: str, x: torch.Tensor) -> torch.Tensor:
    name = {torch.float32: "fp32", torch.bfloat16: "bf16"}[x.dtype]
    reply = httpx.post(
        f"{url}/mlp",
        params={"model": "ckpt", "layer": layer, "output": output},
        content=x.contiguous().view(torch.uint8).numpy().tobytes(),
        headers={"Content-Type": "application/octet-stream", "X-Tensor-Dtype": name},
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    assert reply.headers["X-Tensor-Dtype"] == name
    return torch.frombuffer(bytearray(reply.content), dtype=x.dtype).view(len(x), -1)


@pytest.mark.parametrize("output", ["mlp", "gated"])
@pytest.mark.parametrize("post", [post_npy, post_raw])
def test_fp32_weights_give_transformers_answers(fp32: Served, output: str, post) -> None:
    for layer, states in enumerate(fp32.states):
        answer = post(fp32.url, layer, output, states["x"])
        assert answer.dtype == torch.float32
        assert answer.shape == states[output].shape
        assert relative_deviation(answer, states[output]) < 1e-5


def recompute(mlp: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> States:
    """The same weights and states at another precision, by transformers' own module."""
    wide = copy.deepcopy(mlp).to(dtype)
    states: States = {}
    wide.down_proj.register_forward_pre_hook(lambda _, args: states.update(gated=args[0]))
    with torch.no_grad():
        states["mlp"] = wide(x.to(dtype))
    return states


@pytest.mark.parametrize("output", ["mlp", "gated"])
def test_bf16_weights_are_within_one_percent_of_fp64(bf16: Served, output: str) -> None:
    for layer, (states, mlp) in enumerate(zip(bf16.states, bf16.mlps, strict=True)):
        x = states["x"]
        exact = recompute(mlp, x, torch.float64)[output]
        single = recompute(mlp, x, torch.float32)[output]
        for answer in (
            post_raw(bf16.url, layer, output, x),
            post_raw(bf16.url, layer, output, x.float()),
            post_npy(bf16.url, layer, output, x.float()),
        ):
            assert excess_over_one_percent(answer, exact, single).max() <= 0
