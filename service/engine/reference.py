"""The reference engine: the gated MLP in FP32, by torch, on a CPU or a GPU.

Slow and trusted. Weights stay in the checkpoint's dtype and are widened a few rows at a time;
everything after them is FP32 until the one rounding into the request's dtype.
"""

from __future__ import annotations

import threading
import time

import torch

from service.engine.base import Batch, BatchReport, Gpu, ModelSpec, Output, host_rows
from service.engine.faults import DeviceFaults
from service.engine.gpus import identify
from service.engine.known_answers import KnownAnswers
from service.engine.peaks import peak_flops
from service.engine.tensors import GrowingBuffer, as_rows
from service.engine.weights import TORCH_DTYPES, ResidentModel
from service.kernels.reference import WIDENED_ELEMENTS, gated_into, linear_into

KERNEL = "reference"

# Rows computed at once: bounds the FP32 intermediate (242 MiB at 72B) and is large enough that
# widening the weights again for each block is noise.
_BLOCK_TOKENS = 2048

# On a GPU each widened piece costs launches, so it is 16 times larger: 64 MiB of FP32.
_GPU_WIDENED_ELEMENTS = 16 * WIDENED_ELEMENTS

_WARM_UP_TOKENS = (1, 16, 128)


class ReferenceEngine:
    """Implements `service.engine.base.Engine`; one batch at a time."""

    def __init__(self, model: ResidentModel, device: torch.device) -> None:
        """Take over a resident model.

        Args:
            model: Weights on `device`.
            device: A CPU or CUDA device.
        """
        # TF32 would keep 10 bits of each factor; this process has no other use for it.
        torch.set_float32_matmul_precision("highest")
        self._resident = model
        self._device = device
        self._x = GrowingBuffer(device)
        self._intermediate = GrowingBuffer(device)
        self._answer = GrowingBuffer(device)
        wanted = WIDENED_ELEMENTS if device.type == "cpu" else _GPU_WIDENED_ELEMENTS
        widest = max(model.spec.hidden_size, model.spec.intermediate_size)
        self._workspace = torch.empty(max(wanted, widest), device=device)
        self._known_answers = KnownAnswers(model.spec.hidden_size, self._run_row)
        # The self-test may come from another thread than the batches, and shares the buffers.
        self._lock = threading.Lock()

    @property
    def backend(self) -> str:
        """`reference`."""
        return "reference"

    @property
    def device(self) -> str:
        """`cpu`, or the GPU's name."""
        if self._device.type == "cpu":
            return "cpu"
        return torch.cuda.get_device_name(self._device)

    @property
    def concurrency(self) -> int:
        """One batch at a time: the buffers are shared."""
        return 1

    @property
    def kernels(self) -> tuple[str, ...]:
        """The only kernel name of the reports."""
        return (KERNEL,)

    @property
    def model(self) -> ModelSpec:
        """What is resident."""
        return self._resident.spec

    @property
    def peak_flops(self) -> float | None:
        """Dense peak FLOP/s of the GPU at the weights' dtype; None on a CPU."""
        return None if self._device.type == "cpu" else peak_flops(self.device, self.model.dtype)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU, if it is one."""
        return identify(self._device)

    def warm_up(self, max_batch_tokens: int) -> None:
        """Size the buffers, run a few sizes and record the self-test's answers.

        Raises:
            EngineError: a layer's answer is not what FP64 gives.
        """
        spec = self.model
        sizes = (*_WARM_UP_TOKENS, _BLOCK_TOKENS) if self._on_gpu else _WARM_UP_TOKENS
        with self._lock, DeviceFaults("warm-up"):
            self._x.rows(max_batch_tokens, spec.hidden_size)
            self._intermediate.rows(min(max_batch_tokens, _BLOCK_TOKENS), spec.intermediate_size)
            self._answer.rows(max_batch_tokens, max(spec.hidden_size, spec.intermediate_size))
            for tokens in {min(size, max_batch_tokens) for size in sizes}:
                self._x.rows(tokens, spec.hidden_size).zero_()
                for output in Output:
                    self._compute(spec.layers[0], output, tokens)
        self._known_answers.record(self._resident)

    def run(self, batch: Batch) -> BatchReport:
        """Fill every segment's output.

        Raises:
            EngineDead: the device can run nothing any more.
            EngineError: the device ran out of memory.
        """
        with self._lock, DeviceFaults(f"batch of {batch.tokens} tokens"):
            started = time.perf_counter()
            self._gather(batch)
            gathered = self._now()
            answer = self._compute(batch.layer, batch.output, batch.tokens)
            computed = self._now()
            self._scatter(batch, answer)
            scattered = self._now()
        compute_s = computed - gathered
        return BatchReport(
            kernel=KERNEL,
            kernels=((KERNEL, compute_s),),
            stages={
                "h2d": gathered - started,
                "compute": compute_s,
                "d2h": scattered - computed,
            },
            busy_s=compute_s,
        )

    def self_test(self) -> None:
        """Run a known input on one resident layer; each call takes the next.

        Raises:
            EngineError: its answer changed; the message names the layer and the deviation.
            EngineDead: the device can run nothing any more.
        """
        self._known_answers.check()

    def close(self) -> None:
        """Let go of buffers and weights."""
        with self._lock:
            for buffer in (self._x, self._intermediate, self._answer):
                buffer.clear()
            self._workspace = self._workspace.new_empty(0)
            self._resident = ResidentModel(self._resident.spec, {})

    @property
    def _on_gpu(self) -> bool:
        return self._device.type != "cpu"

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _gather(self, batch: Batch) -> None:
        x = self._x.rows(batch.tokens, self.model.hidden_size)
        first = 0
        for segment in batch.segments:
            data = host_rows(segment.input)
            rows = as_rows(data, segment.input_dtype, self.model.hidden_size)
            # To the device first: the narrow type crosses the bus, and is widened there.
            x[first : first + segment.tokens].copy_(rows.to(self._device))
            first += segment.tokens

    def _compute(self, layer: int, output: Output, tokens: int) -> torch.Tensor:
        """The answer to the first rows of the input buffer, in the answer buffer."""
        spec, weights = self.model, self._resident.layers[layer]
        x = self._x.rows(tokens, spec.hidden_size)
        answer = self._answer.rows(tokens, spec.width(output))
        for first in range(0, tokens, _BLOCK_TOKENS):
            x_block = x[first : first + _BLOCK_TOKENS]
            out = answer[first : first + _BLOCK_TOKENS]
            if output is Output.GATED:
                gated_into(out, x_block, weights.gate_up, spec.activation, self._workspace)
                continue
            gated = self._intermediate.rows(len(out), spec.intermediate_size)
            gated_into(gated, x_block, weights.gate_up, spec.activation, self._workspace)
            linear_into(out, gated, weights.down, self._workspace)
        return answer

    def _scatter(self, batch: Batch, answer: torch.Tensor) -> None:
        first = 0
        for segment in batch.segments:
            rows = answer[first : first + segment.tokens]
            data = host_rows(segment.output)
            out = as_rows(data, segment.output_dtype, answer.shape[1])
            out.copy_(rows.to(TORCH_DTYPES[segment.output_dtype]))
            first += segment.tokens

    def _run_row(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        with self._lock, DeviceFaults(f"self-test of layer {layer}"):
            self._x.rows(1, self.model.hidden_size).copy_(x)
            return self._compute(layer, Output.MLP, 1).to("cpu", copy=True)
