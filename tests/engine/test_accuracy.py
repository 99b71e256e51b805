"""No element further from FP64 than 1 %, up to what any FP32 computation is off by."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from service.engine.base import DType, Output
from service.engine.reference import ReferenceEngine
from service.engine.weights import ResidentModel
from service.kernels import reference
from tests.accuracy import excess_over_one_percent
from tests.engine.batches import answers, make_batch, make_model

SCALES = [0.002, 0.02, 0.1, 1.0]


def model_at(scale: float) -> ResidentModel:
    return make_model(hidden_size=256, intermediate_size=704, layers=(0,), scale=scale)


def inputs() -> torch.Tensor:
    return torch.randn(96, 256, generator=torch.Generator().manual_seed(1)).bfloat16()


def exact_and_fp32(
    model: ResidentModel, x: torch.Tensor, output: Output
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP64, and torch's own unfused FP32."""
    gate_up, down = (weight.float() for weight in (model.layers[0].gate_up, model.layers[0].down))
    gate, up = (x.float() @ gate_up.T).chunk(2, dim=1)
    gated = functional.silu(gate) * up
    if output is Output.GATED:
        return reference.gated(x, gate_up, "silu", torch.float64), gated
    return reference.mlp(x, gate_up, down, "silu", torch.float64), gated @ down.T


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("output_dtype", [DType.BF16, DType.FP32])
def test_every_element_is_within_one_percent(
    scale: float, output: Output, output_dtype: DType
) -> None:
    model, x = model_at(scale), inputs()
    engine = ReferenceEngine(model, torch.device("cpu"))
    batch = make_batch(model.spec, [x], output=output, output_dtype=output_dtype)
    engine.run(batch)
    excess = excess_over_one_percent(answers(batch)[0], *exact_and_fp32(model, x, output))
    assert excess.max() <= 0


def test_one_rounding_more_is_noticed() -> None:
    """The unfused bf16 path, which rounds gate, up and gated, has elements that are further off."""
    model, x = model_at(0.1), inputs()
    gate, up = (x @ model.layers[0].gate_up.T).chunk(2, dim=1)
    unfused = (functional.silu(gate) * up) @ model.layers[0].down.T
    excess = excess_over_one_percent(unfused, *exact_and_fp32(model, x, Output.MLP))
    assert (excess > 0).float().mean() > 1e-3
