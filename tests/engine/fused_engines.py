"""Fused engines on a device that is only a CPU, and batches for them."""

from __future__ import annotations

import torch

from service.engine.base import Batch, Output
from service.engine.fused import FusedEngine
from service.engine.weights import ResidentModel
from service.kernels import reference
from tests.engine.batches import answers
from tests.engine.fake_device import FakeDevice, FakeDown, FakeGateUp

HIDDEN = 32
# Above it there is no graph: GRAPH_BYTES are patched to hold 16 rows of 48 bf16 elements.
LARGEST_GRAPH = 16
# And above it no graph of the kernels alone.
LARGEST_TRIP = 32
MAX_TOKENS = 200


class Made:
    def __init__(self, model: ResidentModel, slots: int) -> None:
        self.model = model
        self.device = FakeDevice()
        self.gate_up = FakeGateUp(model.spec)
        self.engine = FusedEngine(
            model, self.device, self.gate_up, FakeDown(self.device), slots=slots
        )


def draw(tokens: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1000 + tokens)
    return torch.randn(tokens, HIDDEN, generator=generator).to(dtype)


def exact(model: ResidentModel, x: torch.Tensor, layer: int, output: Output) -> torch.Tensor:
    weights = model.layers[layer]
    x = x.to(weights.gate_up.dtype)
    if output is Output.GATED:
        return reference.gated(x, weights.gate_up, model.spec.activation, torch.float64)
    return reference.mlp(x, weights.gate_up, weights.down, model.spec.activation, torch.float64)


def assert_right(model: ResidentModel, inputs: list[torch.Tensor], batch: Batch) -> None:
    """Within the two roundings to the resident dtype, of the row's largest value."""
    eps = torch.finfo(model.layers[batch.layer].gate_up.dtype).eps
    for x, answer in zip(inputs, answers(batch), strict=True):
        expected = exact(model, x, batch.layer, batch.output)
        scale = expected.abs().amax(dim=1, keepdim=True)
        assert ((answer.double() - expected).abs() <= 2 * eps * scale).all()
