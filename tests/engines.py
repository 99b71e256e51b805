"""An engine for tests: known arithmetic, and every way to misbehave on demand."""

from __future__ import annotations

import threading
import time

import numpy as np

from service.engine.base import Batch, BatchReport, DType, ModelSpec, Output

HIDDEN = 16
INTERMEDIATE = 32
NUMPY_DTYPES = {DType.FP32: np.dtype("<f4"), DType.FP16: np.dtype("<f2")}


def spec(layers: tuple[int, ...] = (0,), hidden: int = HIDDEN) -> ModelSpec:
    """A small model."""
    return ModelSpec("tiny", hidden, 2 * hidden, layers, "silu", DType.FP32)


def expected(x: np.ndarray, layer: int, output: Output = Output.MLP) -> np.ndarray:
    """What FakeEngine answers: x + layer + 1, twice as wide and negative for gated. NaN passes."""
    y = x.astype(np.float32) + (layer + 1)
    return y if output is Output.MLP else np.concatenate([-y, y], axis=-1)


class FakeEngine:
    """Computes `expected` on FP32 and FP16 rows.

    Attributes:
        gate: Cleared, it blocks every run until it is set again.
        fail_marker: A batch with this value in it fails, as an engine with one bad member does.
        fail_next: Raised once by the next run.
        self_test_error: Raised by every self-test.
        batches: What was run, for the test to look at.
    """

    backend = "fake"
    device = "nowhere"
    kernels = ("fake",)
    peak_flops: float | None = None

    def __init__(
        self,
        model: ModelSpec | None = None,
        *,
        concurrency: int = 1,
        run_s: float = 0.0,
        warm_up_s: float = 0.0,
    ) -> None:
        self.model = model or spec()
        self.concurrency = concurrency
        self.run_s = run_s
        self.warm_up_s = warm_up_s
        self.gate = threading.Event()
        self.gate.set()
        self.fail_marker: float | None = None
        self.fail_next: BaseException | None = None
        self.warm_up_error: BaseException | None = None
        self.self_test_error: BaseException | None = None
        self.batches: list[Batch] = []
        self.started = threading.Semaphore(0)
        self.closed = False

    def warm_up(self, max_batch_tokens: int) -> None:
        time.sleep(self.warm_up_s)
        if self.warm_up_error is not None:
            raise self.warm_up_error

    def run(self, batch: Batch) -> BatchReport:
        self.batches.append(batch)
        self.started.release()
        assert self.gate.wait(30), "the test forgot to open the gate"
        if self.run_s:
            time.sleep(self.run_s)
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        for segment in batch.segments:
            x = np.frombuffer(segment.input, NUMPY_DTYPES[segment.input_dtype])
            x = x.reshape(segment.tokens, self.model.hidden_size)
            if self.fail_marker is not None and (x == self.fail_marker).any():
                raise RuntimeError(f"marker {self.fail_marker} in the batch")
            y = expected(x, batch.layer, batch.output)
            out = np.frombuffer(segment.output, NUMPY_DTYPES[segment.output_dtype])
            out[:] = y.astype(out.dtype).ravel()
        return BatchReport(
            "fake", (("fake", 1e-4),), {"h2d": 1e-5, "compute": 1e-4, "d2h": 1e-5}, 1e-4
        )

    def self_test(self) -> None:
        if self.self_test_error is not None:
            raise self.self_test_error

    def close(self) -> None:
        self.closed = True
