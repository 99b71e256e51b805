"""What one batch in flight needs, allocated once: device rows, staging, timers, graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from service.engine.base import ModelSpec, Output
from service.engine.cuda_device import CudaDevice, Laps, TripEnds
from service.engine.host_memory import Pieces
from service.engine.weights import TORCH_DTYPES, ResidentLayer
from service.kernels.transfer import Graph, Trip


class Product(Protocol):
    """Rows by resident weights, on the device."""

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue it on the current stream."""


class Products(NamedTuple):
    """The two halves of the MLP.

    Attributes:
        gate_up: [tokens, K] by [2N, K] into [tokens, N], the activation included.
        down: [tokens, N] by [K, N] into [tokens, K].
    """

    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True)
class Seconds:
    """Device time of one batch."""

    h2d: float
    gate_up: float
    down: float
    d2h: float

    @classmethod
    def of(cls, output: Output, laps_s: Sequence[float]) -> Seconds:
        """What laps took that are those of `Timers.laps`."""
        if output is Output.MLP:
            h2d, gate_up, down, d2h, *_ = laps_s
        else:
            (h2d, gate_up, d2h, *_), down = laps_s, 0.0
        return cls(h2d, gate_up, down, d2h)

    @property
    def busy(self) -> float:
        """In which a kernel ran."""
        return self.gate_up + self.down


class Timers:
    """Events between the stages of a batch.

    Attributes:
        note: Records one of them behind what was enqueued on the stream of kernels. In a graph it
            is beside what follows, or it would take 3 µs, and down could not begin to load its
            weights while gate/up ends.
        end: Behind the last copy; never in a graph.
    """

    def __init__(
        self, device: CudaDevice, *, kernels_in_graph: bool = False, copies_in_graph: bool = False
    ) -> None:
        self.started, self.gated, self.computed = (
            device.timer(in_graph=kernels_in_graph) for _ in range(3)
        )
        self.begin = device.timer(in_graph=copies_in_graph)
        # In a graph, rows have arrived when the kernels start, and down begins where gate/up ends;
        # launched by itself, a kernel may come late.
        self.arrived = self.started if copies_in_graph else device.timer()
        self.down_started = self.gated if kernels_in_graph else device.timer()
        self.end = device.timer()
        self.note = device.record_beside if kernels_in_graph else device.record

    def laps(self, output: Output) -> Laps:
        """What `Seconds.of` takes."""
        if output is Output.MLP:
            compute = ((self.started, self.gated), (self.down_started, self.computed))
            return ((self.begin, self.arrived), *compute, (self.computed, self.end))
        return ((self.begin, self.arrived), (self.started, self.gated), (self.gated, self.end))


class Slot:
    """Buffers of one batch in flight. One thread uses it at a time.

    Attributes:
        x: [capacity, hidden_size] on the device, of the resident dtype, like the next two.
        gated: [capacity, intermediate_size].
        answer: [capacity, hidden_size].
        upload: What inputs pass through that are not copied from where they are.
        download: The same for answers.
        trips: Batches that have a graph, by layer, output and rows: of small ones it holds the
            copies too, of larger ones the kernels alone.
        laps: Of those that have none, for `CudaDevice.read_laps`.
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
        self._device = device
        self.timers = Timers(device)
        self.graph_timers = Timers(device, kernels_in_graph=True, copies_in_graph=True)
        self.trip_timers = Timers(device, kernels_in_graph=True)
        self.done = device.event()
        self._small_ends, self._trip_ends = map(self._ends, (self.graph_timers, self.trip_timers))
        self.laps = {output: device.laps(self.timers.laps(output)) for output in Output}
        self.trips: dict[tuple[int, Output, int], Trip] = {}

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
        timers.note(timers.started)
        products.gate_up.run(self.x[:tokens], weights.gate_up, gated)
        timers.note(timers.gated)
        if output is Output.MLP:
            if timers.down_started is not timers.gated:
                timers.note(timers.down_started)
            products.down.run(gated, weights.down, self.answer[:tokens])
            timers.note(timers.computed)

    def enqueue_small(
        self, products: Products, weights: ResidentLayer, output: Output, tokens: int
    ) -> None:
        """Enqueue a whole batch, from a piece to a piece; what the graph of a small one holds."""
        result, timers = self.result(output, tokens), self.graph_timers
        timers.note(timers.begin)
        self.x[:tokens].copy_(self.upload.rows(tokens, self.x.shape[1]), non_blocking=True)
        self.compute(products, weights, output, tokens, timers)
        self.download.rows(tokens, result.shape[1]).copy_(result, non_blocking=True)
        self._device.join()

    def enqueue_kernels(
        self, products: Products, weights: ResidentLayer, output: Output, tokens: int
    ) -> None:
        """Enqueue what the graph of a trip captures."""
        self.compute(products, weights, output, tokens, self.trip_timers)
        self._device.join()

    def small_trip(self, graph: Graph, output: Output) -> Trip:
        """A small batch through such a graph."""
        laps = self._device.laps(self.graph_timers.laps(output))
        return self._device.small_trip(self._small_ends, graph, laps)

    def trip(self, graph: Graph, output: Output) -> Trip:
        """A larger one."""
        laps = self._device.laps(self.trip_timers.laps(output))
        answers = self.result(output, self.capacity)
        return self._device.trip(self._trip_ends, graph, answers, laps)

    def _ends(self, timers: Timers) -> TripEnds:
        return TripEnds(
            upload=self.upload.staging,
            x=self.x,
            begin=timers.begin,
            arrived=timers.arrived,
            done=self.done,
            download=self.download.staging,
            end=timers.end,
        )
