"""Batches made of tensors, and what came out of them, for tests of engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from service.engine.base import Batch, DType, ModelSpec, Output, Segment
from service.engine.weights import TORCH_DTYPES, ResidentLayer, ResidentModel

WIRE = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def to_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def make_model(
    *,
    hidden_size: int = 32,
    intermediate_size: int = 48,
    layers: tuple[int, ...] = (0, 3),
    dtype: torch.dtype = torch.bfloat16,
    activation: str = "silu",
    scale: float = 0.1,
) -> ResidentModel:
    """Random weights whose up half is spread three times as wide as the gate half."""
    generator = torch.Generator().manual_seed(7)

    def draw(rows: int, columns: int) -> torch.Tensor:
        return scale * torch.randn(rows, columns, generator=generator)

    resident = {}
    for layer in layers:
        gate, up = draw(intermediate_size, hidden_size), 3 * draw(intermediate_size, hidden_size)
        down = draw(hidden_size, intermediate_size)
        resident[layer] = ResidentLayer(torch.cat([gate, up]).to(dtype), down.to(dtype))
    spec = ModelSpec("test", hidden_size, intermediate_size, layers, activation, WIRE[dtype])
    return ResidentModel(spec, resident)


def make_segment(
    x: torch.Tensor, width: int, output_dtype: DType, *, readonly: bool = False
) -> Segment:
    data = to_bytes(x)
    return Segment(
        tokens=x.shape[0],
        input=memoryview(data if readonly else bytearray(data)),
        input_dtype=WIRE[x.dtype],
        output=memoryview(bytearray(x.shape[0] * width * output_dtype.itemsize)),
        output_dtype=output_dtype,
    )


def make_batch(
    spec: ModelSpec,
    inputs: Sequence[torch.Tensor],
    *,
    layer: int = 0,
    output: Output = Output.MLP,
    output_dtype: DType | None = None,
    readonly: bool = False,
) -> Batch:
    """A segment per input; answers in the input's type, or all in `output_dtype`."""
    width = spec.width(output)
    return Batch(
        layer,
        output,
        [make_segment(x, width, output_dtype or WIRE[x.dtype], readonly=readonly) for x in inputs],
    )


def answers(batch: Batch) -> list[torch.Tensor]:
    """Each segment's output, [tokens, width] in its own type; copies."""
    return [
        torch.frombuffer(bytearray(segment.output), dtype=TORCH_DTYPES[segment.output_dtype]).view(
            segment.tokens, -1
        )
        for segment in batch.segments
    ]
