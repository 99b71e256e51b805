"""A device for the fused engine where there is no GPU: everything happens at once, on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager

import torch

from service.engine.base import ModelSpec
from service.engine.gate_up import ChosenKernel
from service.kernels import reference
from service.kernels.library import KernelChoice


class FakeEvent:
    """Counts; the time between two is always 1 ms."""

    def __init__(self) -> None:
        self.records = 0
        self.waited_for = 0

    def record(self) -> None:
        self.records += 1

    def synchronize(self) -> None:
        self.waited_for = self.records

    def elapsed_time(self, other: FakeEvent) -> float:
        assert other is not self
        return 1.0


class FakeStream:
    def wait_event(self, event: FakeEvent) -> None:
        assert event.records, "waited for nothing"


class FakeDevice:
    """What CudaDevice is.

    Attributes:
        pin: Whether tensors that the device did not allocate count as pinned.
        captures: Graphs captured.
        replays: Graphs launched.
        idle: Called by `synchronize`.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.name = "fake GPU"
        self.num_sms = 132
        self.h2d, self.compute, self.d2h = FakeStream(), FakeStream(), FakeStream()
        self.pin = False
        self.captures = self.replays = 0
        self.idle: Callable[[], None] = lambda: None
        self.entered: set[int] = set()

    def enter(self) -> None:
        self.entered.add(threading.get_ident())

    @contextmanager
    def on(self, stream: FakeStream):
        assert threading.get_ident() in self.entered
        yield

    def empty(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows, columns), float("nan"), dtype=dtype)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 255, dtype=torch.uint8)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self.pin

    def event(self) -> FakeEvent:
        return FakeEvent()

    def timer(self, *, in_graph: bool = False) -> FakeEvent:
        return FakeEvent()

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            enqueue()

        return replay

    def synchronize(self) -> None:
        self.idle()


class FakeGateUp:
    """What GateUp is, on the CPU.

    Attributes:
        sizes: Rows of every product that ran.
        before: Called with each product's rows before it; may raise.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self.sizes: list[int] = []
        self.before: Callable[[torch.Tensor], None] = lambda x: None

    def choose(self, tokens: int) -> ChosenKernel:
        kernel = "kernel1" if tokens >= 2048 else "kernel2"
        return ChosenKernel(KernelChoice(0), kernel, f"{kernel}/for_{tokens}")

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self.before(x)
        self.sizes.append(len(x))
        out.copy_(reference.gated(x, weight, self._model.activation, torch.float32))
