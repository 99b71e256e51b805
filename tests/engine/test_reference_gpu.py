"""The reference engine on a GPU: the same answers, in FP32 and not in TF32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.engine.base import Batch, Output
from service.engine.create import create_engine
from service.engine.plan import select_device
from service.engine.weights import load_model
from service.errors import EngineError
from service.kernels import reference
from tests.accuracy import excess_over_one_percent
from tests.checkpoints import mlp_tensors, write_checkpoint
from tests.engine.batches import answers, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = mlp_tensors(hidden_size=1024, intermediate_size=2048, layers=2, scale=0.05)
    return write_checkpoint(tmp_path / "ckpt", tensors, shards=2)


def draw(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tokens, 1024, generator=torch.Generator().manual_seed(tokens)).to(dtype)


def compute(checkpoint: Path, x: torch.Tensor, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    model = load_model(checkpoint, device=torch.device("cpu"))
    weights = model.layers[batch.layer]
    if batch.output is Output.GATED:
        return reference.gated(x, weights.gate_up, "silu", dtype)
    return reference.mlp(x, weights.gate_up, weights.down, "silu", dtype)


@pytest.mark.parametrize("output", Output)
def test_every_element_is_within_one_percent(checkpoint: Path, output: Output) -> None:
    # A setting left behind by something else in the process must not matter.
    torch.set_float32_matmul_precision("high")
    engine, reason = create_engine(
        model=checkpoint,
        preset="",
        model_name=None,
        layers=None,
        device="cuda",
        backend="reference",
    )
    assert engine.device in select_device("auto")[1]
    assert reason.startswith("backend reference on cuda:0")
    engine.warm_up(3000)
    inputs = [draw(1, torch.bfloat16), draw(2900, torch.float32), draw(17, torch.float16)]
    batch = make_batch(engine.model, inputs, layer=1, output=output)
    report = engine.run(batch)
    assert 0 < report.busy_s < sum(report.stages.values())
    for x, answer in zip(inputs, answers(batch), strict=True):
        exact = compute(checkpoint, x, batch, torch.float64)
        fp32 = compute(checkpoint, x, batch, torch.float32)
        assert excess_over_one_percent(answer, exact, fp32).max() <= 0
    engine.self_test()


def test_tf32_would_be_noticed(checkpoint: Path) -> None:
    engine, _ = create_engine(
        model=checkpoint,
        preset="",
        model_name=None,
        layers=None,
        device="cuda",
        backend="reference",
    )
    x = draw(2048, torch.float32)
    batch = make_batch(engine.model, [x])
    torch.set_float32_matmul_precision("high")
    try:
        engine.run(batch)
    finally:
        torch.set_float32_matmul_precision("highest")
    exact, fp32 = (compute(checkpoint, x, batch, dtype) for dtype in (torch.float64, torch.float32))
    assert excess_over_one_percent(answers(batch)[0], exact, fp32).max() > 0


def test_running_out_of_memory_fails_the_batch_alone(checkpoint: Path) -> None:
    engine, _ = create_engine(
        model=checkpoint,
        preset="",
        model_name=None,
        layers=None,
        device="cuda",
        backend="reference",
    )
    engine.warm_up(16)
    hog = torch.empty(torch.cuda.mem_get_info()[0] - (1 << 30), dtype=torch.uint8, device="cuda")
    x = torch.zeros(400_000, 1024, dtype=torch.bfloat16)
    with pytest.raises(EngineError, match=r"^batch of 400000 tokens: out of device memory$"):
        engine.run(make_batch(engine.model, [x], output=Output.GATED))
    del hog
    batch = make_batch(engine.model, [draw(3, torch.float32)])
    engine.run(batch)
    assert answers(batch)[0].isfinite().all()
