"""The words that front, batcher and engine share, and the protocol every engine implements.

Imports neither torch nor HTTP: whatever moves requests must not need to load them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


class DType(Enum):
    """Element types on the wire and of resident weights, by their wire names."""

    # By identity: Enum's own is a function in Python, and keys hold members on every request's way.
    __hash__ = object.__hash__

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is DType.FP32 else 2


class Output(Enum):
    """What a request wants: the whole MLP, or the gated intermediate before the down projection."""

    __hash__ = object.__hash__

    MLP = "mlp"
    GATED = "gated"


Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One served model: the shape of its MLPs and the layers that are resident.

    Attributes:
        name: What clients call it.
        hidden_size: K of the gate/up GEMM, width of the activations.
        intermediate_size: N of the gate/up GEMM.
        layers: Layer indices in the checkpoint's numbering, ascending.
        activation: What the gate goes through.
        dtype: Element type of the resident weights.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    layers: tuple[int, ...]
    activation: Activation
    dtype: DType

    def width(self, output: Output) -> int:
        """Columns of the answer."""
        return self.hidden_size if output is Output.MLP else self.intermediate_size

    @property
    def weight_bytes(self) -> int:
        """Of all resident layers."""
        per_layer = 3 * self.hidden_size * self.intermediate_size * self.dtype.itemsize
        return len(self.layers) * per_layer

    def flops(self, output: Output, tokens: int) -> int:
        """Model FLOPs of a batch: 2 per multiply-add, the activation not counted."""
        per_token = 6 if output is Output.MLP else 4
        return per_token * tokens * self.hidden_size * self.intermediate_size


class DeviceMemory(Protocol):
    """A client's memory on the device; open until the engine that opened it closes it."""

    @property
    def address(self) -> int:
        """Where it begins on the device, to be compared with others; nothing to read from."""


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """Rows in a client's memory on the device: no buffer, so that no processor can touch them.

    Attributes:
        memory: Of the engine that the rows are for.
        offset: First byte, counted from the beginning of the memory.
        nbytes: Length.
    """

    memory: DeviceMemory
    offset: int
    nbytes: int


Rows: TypeAlias = memoryview | DeviceWindow


def host_rows(rows: Rows) -> memoryview:
    """Rows that a processor may touch.

    Raises:
        TypeError: they are on the device.
    """
    if isinstance(rows, DeviceWindow):
        raise TypeError("rows: must be in host memory, are on the device")
    return rows


class Segment(NamedTuple):
    """One request's rows inside a batch: made for each, and a tuple is made four times as fast.

    Attributes:
        input: [tokens, hidden_size] of `input_dtype`, C order, little-endian. Lies in a slot that
            is reused after the batch, or in memory of a client: an engine must not keep it. On the
            device only where the engine opens memory there, as is `output`.
        output: Writable, [tokens, width] of `output_dtype`; belongs to this request alone.
    """

    tokens: int
    input: Rows
    input_dtype: DType
    output: Rows
    output_dtype: DType


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests for the same layer and output, executed as one by concatenating their rows.

    `segments` holds at least one segment and no empty ones.
    """

    layer: int
    output: Output
    segments: Sequence[Segment]

    @property
    def tokens(self) -> int:
        """Rows of all segments."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def is_on_host(self) -> bool:
        """Whether no segment's rows are on the device."""
        return not any(
            isinstance(segment.input, DeviceWindow) or isinstance(segment.output, DeviceWindow)
            for segment in self.segments
        )


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What the engine did with one batch.

    Attributes:
        kernel: The gate/up kernel that ran, as clients see it in `X-MLP-Kernel`; may say more than
            the names in `kernels`, such as its tile.
        kernels: Seconds of device time per kernel launched, in launch order.
        stages: Seconds per stage of the batch: `h2d`, `compute`, `d2h`.
        busy_s: Seconds in which the device computed this batch and no other.
    """

    kernel: str
    kernels: tuple[tuple[str, float], ...]
    stages: Mapping[str, float] = field(default_factory=dict)
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch that is on the device, and that nobody waits for yet.

    Any thread may call what it has, and all of it raises as `Engine.run`.

    Attributes:
        kernel: As in its report.
        spin: Whether it is over within so many seconds from now; a thread that asks keeps a
            processor busy, but not the interpreter.
        finish: To be called once: waits, however long, and fills every segment's output.
        report: To be called once behind `finish`, but not necessarily at once: reading the device's
            timers takes a while. Until then the batch counts as one that is under way.
    """

    kernel: str
    spin: Callable[[float], bool]
    finish: Callable[[], None]
    report: Callable[[], BatchReport]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that an engine uses.

    Attributes:
        index: Among the GPUs that this process sees, as in the setting `device`.
        uuid: NVML's name for it: `GPU-` and the UUID.
    """

    index: int
    uuid: str


class Engine(Protocol):
    """Runs batches on a device. These methods are called off the event loop.

    `run` may be called from up to `concurrency` threads at a time. It raises EngineDead when
    nothing can run any more, and any other exception when this batch alone failed.
    """

    @property
    def backend(self) -> str:
        """Short name of the implementation: `reference`, `fused`."""

    @property
    def device(self) -> str:
        """Where it runs, for people: `cpu`, `NVIDIA H200`."""

    @property
    def concurrency(self) -> int:
        """Batches that may be in `run` at once, at least 1."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Every kernel name a report can carry: the closed set of the `kernel` label."""

    @property
    def model(self) -> ModelSpec:
        """What is resident."""

    @property
    def peak_flops(self) -> float | None:
        """Dense peak FLOP/s of the device at the resident dtype; None where it is not known."""

    def warm_up(self, max_batch_tokens: int) -> None:
        """Make the first request as fast as the hundredth; also records the self-test's answer."""

    def run(self, batch: Batch) -> BatchReport:
        """Fill every segment's output."""

    def self_test(self) -> None:
        """Run a known input, briefly; raises EngineError on a wrong answer."""

    def close(self) -> None:
        """Let go of the device. `run` is not called afterwards."""


@runtime_checkable
class OnGpus(Protocol):
    """What an engine may have besides; asked for with isinstance."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs it uses; none on a CPU."""


@runtime_checkable
class LaunchesBatches(Protocol):
    """What an engine may have besides; asked for with isinstance.

    For batches so short that waking a thread for them takes longer than they do.
    """

    def expected_s(self, output: Output, tokens: int) -> float | None:
        """Seconds such a batch is on the device; None where it cannot be launched without waiting.

        Known once the engine is warm.
        """

    def launch(self, batch: Batch) -> Launched | None:
        """Put a batch on the device, and wait for nothing there; None where that is not possible.

        Any thread may call it, the event loop's too, beside others that are in `run`. Raises as
        `run`.
        """


# Gets what `Engine.run` would have returned or raised.
OnEnd: TypeAlias = Callable[[BatchReport | Exception], None]


@runtime_checkable
class StartsBatches(Protocol):
    """What an engine may have besides; asked for with isinstance.

    It runs some batches in threads of its own, which need no interpreter. `start` and `collect` are
    for one thread, the event loop's, beside others that are in `run`.
    """

    @property
    def descriptors(self) -> tuple[int, ...]:
        """One of them is readable while `collect` has something to tell."""

    def starts(self, output: Output, tokens: int) -> bool:
        """Whether `start` takes batches of so many rows, if it takes any."""

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        """Start a batch, wait for nothing, and have `collect` call `ended` once it is over.

        Returns:
            False where it has to be run by `Engine.run`. Raises as that.
        """

    def collect(self) -> None:
        """Call `ended` of the batches that are over."""


@runtime_checkable
class LendsHostMemory(Protocol):
    """What an engine may have besides; asked for with isinstance."""

    def allocate_host(self, nbytes: int) -> Buffer:
        """Writable host memory that the device reads and writes fast; freed when it is dropped.

        Called from any thread. Nobody else gets it while anything refers to it.
        """


@runtime_checkable
class PinsHostMemory(Protocol):
    """What an engine may have besides; asked for with isinstance.

    Segments of pinned memory, of the model's dtype and of `direct_bytes` or more are copied by the
    device, and no processor's instruction touches them.
    """

    @property
    def model(self) -> ModelSpec:
        """What is resident."""

    @property
    def direct_bytes(self) -> int:
        """The least bytes of an input or output that the device copies by itself."""

    def pin(self, memory: memoryview) -> bool:
        """Page-lock somebody else's memory; False where that fails. Any thread may call it."""

    def unpin(self, memory: memoryview) -> None:
        """Undo `pin`, once no batch has to do with the memory any more."""


@runtime_checkable
class OpensDeviceMemory(Protocol):
    """What an engine may have besides; asked for with isinstance.

    Segments may then lie in memory that it has opened, of every dtype and size, aligned for it.
    When `run` returns, outputs there are complete for whoever reads them.
    """

    def open_device_memory(self, handle: bytes, device: int, nbytes: int) -> DeviceMemory:
        """Open memory of another process, from any thread.

        Args:
            handle: Of CUDA's, for all of an allocation.
            device: Index of the GPU that it is on.
            nbytes: To be used of it.

        Raises:
            InvalidRequest: it is on another GPU, cannot be opened, or has fewer bytes.
        """

    def close_device_memory(self, memory: DeviceMemory) -> None:
        """Undo it, once no batch has to do with the memory any more; again is no error."""
