"""What one batch in flight needs, allocated once: device rows, staging, timers, graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from service.engine.base import ModelSpec, Output
from service.engine.cuda_device import CudaDevice
from service.engine.host_memory import Pieces
from service.engine.weights import TORCH_DTYPES, ResidentLayer


class Products(Protocol):
    """Gate/up, the fused first half of the MLP, on the device; down is a plain product here."""

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue it on the current stream: [tokens, K] by [2N, K] into [tokens, N]."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Device time of one batch."""

    h2d: float
    gate_up: float
    down: float
    compute: float
    d2h: float


class Timers:
    """Events between the stages of a batch."""

    def __init__(self, device: CudaDevice, *, in_graph: bool) -> None:
        self.begin, self.arrived, self.started, self.gated, self.computed, self.end = (
            device.timer(in_graph=in_graph) for _ in range(6)
        )

    def read(self, output: Output) -> Seconds:
        """What the last batch took, once it is over."""
        gate_up = _seconds(self.started, self.gated)
        computed, down = self.gated, 0.0
        if output is Output.MLP:
            computed, down = self.computed, _seconds(self.gated, self.computed)
        return Seconds(
            h2d=_seconds(self.begin, self.arrived),
            gate_up=gate_up,
            down=down,
            compute=gate_up + down,
            d2h=_seconds(computed, self.end),
        )


def _seconds(first: torch.cuda.Event, second: torch.cuda.Event) -> float:
    milliseconds: float = first.elapsed_time(second)
    return milliseconds / 1e3


class Slot:
    """Buffers of one batch in flight. One thread uses it at a time.

    Attributes:
        x: [capacity, hidden_size] on the device, of the resident dtype, like the next two.
        gated: [capacity, intermediate_size].
        answer: [capacity, hidden_size].
        upload: What inputs pass through that are not copied from where they are.
        download: The same for answers.
        graphs: Launches of whole small batches, by layer, output and bucket.
    """

    def __init__(self, device: CudaDevice, model: ModelSpec, capacity: int) -> None:
        dtype = TORCH_DTYPES[model.dtype]
        hidden, intermediate = model.hidden_size, model.intermediate_size
        self.capacity = capacity
        self.x = device.empty(capacity, hidden, dtype)
        self.gated = device.empty(capacity, intermediate, dtype)
        self.answer = device.empty(capacity, hidden, dtype)
        self.upload = Pieces(device, model, ())
        self.download = Pieces(device, model, tuple(Output))
        self._stream = device.compute
        self.timers = Timers(device, in_graph=False)
        self.graph_timers = Timers(device, in_graph=True)
        self.done = device.event()
        self.graphs: dict[tuple[int, Output, int], Callable[[], None]] = {}

    def result(self, output: Output, tokens: int) -> torch.Tensor:
        """The device rows that the answers are copied from."""
        return (self.answer if output is Output.MLP else self.gated)[:tokens]

    def compute(
        self,
        products: Products,
        weights: ResidentLayer,
        output: Output,
        tokens: int,
        timers: Timers,
    ) -> None:
        """Enqueue the kernels of a batch on the device's stream for them, the current one."""
        gated = self.gated[:tokens]
        timers.started.record(self._stream)
        products.run(self.x[:tokens], weights.gate_up, gated)
        timers.gated.record(self._stream)
        if output is Output.MLP:
            torch.mm(gated, weights.down.T, out=self.answer[:tokens])
            timers.computed.record(self._stream)

    def enqueue_small(
        self, products: Products, weights: ResidentLayer, output: Output, tokens: int
    ) -> None:
        """Enqueue a whole batch, from a piece to a piece; what a graph captures."""
        result, timers = self.result(output, tokens), self.graph_timers
        timers.begin.record(self._stream)
        self.x[:tokens].copy_(self.upload.rows(tokens, self.x.shape[1]), non_blocking=True)
        timers.arrived.record(self._stream)
        self.compute(products, weights, output, tokens, timers)
        self.download.rows(tokens, result.shape[1]).copy_(result, non_blocking=True)
        timers.end.record(self._stream)
