"""What every compared server computes: bf16 rows, through an engine of ours."""

from __future__ import annotations

import os
from collections.abc import Sequence

from service.bench.stub import StubEngine
from service.engine.base import Batch, Buffer, DType, Engine, Output, Segment
from service.engine.create import create_engine

# What servers are told that are started by frameworks, which pass no arguments on. Device and
# workers are in our service's own variables.
MODEL = "TILEMLP_BENCH_MODEL"
DEVICE = "MLP_DEVICE"
WORKERS = "MLP_WORKERS"
ECHO = "echo"
MAX_BATCH_TOKENS = 8192
_DTYPE = DType.BF16


class Mlp:
    """A warm engine and the bytes of rows for it.

    Attributes:
        hidden_size: Columns of a row.
    """

    def __init__(self) -> None:
        """Load what the environment names: `echo`, or a preset on a device."""
        name = os.environ[MODEL]
        self._engine: Engine = StubEngine() if name == ECHO else _create(name)
        self._engine.warm_up(MAX_BATCH_TOKENS)
        self._layer = self._engine.model.layers[0]
        self.hidden_size = self._engine.model.hidden_size

    def run(self, bodies: Sequence[Buffer]) -> list[bytearray]:
        """The answers to some bodies of bf16 rows, in as few batches as their rows allow.

        A framework counts requests, of which a batch may have more rows than an engine takes.
        """
        outputs = [bytearray(len(body)) for body in bodies]
        row_bytes = self.hidden_size * _DTYPE.itemsize
        batch: list[Segment] = []
        tokens = 0
        for body, out in zip(bodies, outputs, strict=True):
            rows = len(body) // row_bytes
            if batch and tokens + rows > MAX_BATCH_TOKENS:
                self._engine.run(Batch(self._layer, Output.MLP, batch))
                batch, tokens = [], 0
            batch.append(Segment(rows, memoryview(body), _DTYPE, memoryview(out), _DTYPE))
            tokens += rows
        if batch:
            self._engine.run(Batch(self._layer, Output.MLP, batch))
        return outputs


def answer_headers(body_bytes: int, hidden_size: int) -> dict[str, str]:
    """What the load generator wants to read about an answer."""
    rows = body_bytes // (hidden_size * _DTYPE.itemsize)
    return {"x-tensor-shape": f"{rows},{hidden_size}", "x-tensor-dtype": _DTYPE.value}


def _create(preset: str) -> Engine:
    engine, _ = create_engine(
        model=None,
        preset=preset,
        model_name=None,
        layers=None,
        device=os.environ[DEVICE],
        backend="auto",
        dispatch="table",
        autotune=False,
        max_batch_tokens=MAX_BATCH_TOKENS,
        progress=lambda _done, _total: None,
    )
    return engine
