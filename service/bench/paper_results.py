"""`<gpu>-paper.json`: what the paper's experiments need besides `<gpu>-kernels.csv`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from service.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PartsRow:
    """Eager's kernels timed apart, and the whole MLP; microseconds a call.

    Attributes:
        model: Preset.
        tokens: M.
        gate_us: GEMM, [M, K] by [N, K].
        up_us: The same for up.
        silu_us: silu of gate.
        mul_us: Its product with up.
        down_us: GEMM, [M, N] by [K, N].
        mlp_us: All five, one after the other, as a model's code calls them.
    """

    model: str
    tokens: int
    gate_us: float
    up_us: float
    silu_us: float
    mul_us: float
    down_us: float
    mlp_us: float

    @property
    def elementwise_us(self) -> float:
        """Activation and product."""
        return self.silu_us + self.mul_us

    @property
    def sum_us(self) -> float:
        """All parts."""
        return self.gate_us + self.up_us + self.elementwise_us + self.down_us

    @property
    def share(self) -> float:
        """Of the parts' time, what activation and intermediates take."""
        return self.elementwise_us / self.sum_us


@dataclass(frozen=True, slots=True)
class CompileRow:
    """torch.compile at one size, in one run with eager and ours.

    Attributes:
        model: Preset.
        tokens: M.
        us: Microseconds a call: `eager`, `fused` and every mode that was run.
        compile_s: Seconds from the first call to the captured graph, by mode.
        launches: Kernels on the GPU in one call, by mode; none where the profiler saw none.
    """

    model: str
    tokens: int
    us: dict[str, float]
    compile_s: dict[str, float]
    launches: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MismatchRow:
    """Shares of the elements of gated that are off by more than 1 % from FP64.

    Attributes:
        model: Preset.
        std: Standard deviation of the weights; that of x is 1.
        eager: Of torch in bf16, which rounds gate, up and silu(gate).
        fp32: Of torch in FP32, rounded once: what any FP32 accumulation has.
        kernel1: Of Kernel-1.
        kernel2: Of Kernel-2.
        config1: The instance that was.
        config2: The other.
    """

    model: str
    std: float
    eager: float
    fp32: float
    kernel1: float
    kernel2: float
    config1: str
    config2: str


@dataclass(slots=True)
class PaperResults:
    """One run.

    Attributes:
        about: Conditions: card, versions, ceilings, command.
        modes: torch.compile's modes: what is different in each, in words.
        parts: One row a size.
        compiled: One row a size.
        mismatch: One row a model and scale.
        left_out: What the budget did not allow.
    """

    about: dict[str, Any]
    modes: dict[str, str]
    parts: list[PartsRow] = field(default_factory=list)
    compiled: list[CompileRow] = field(default_factory=list)
    mismatch: list[MismatchRow] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def paper_path(results: Path, gpu: str) -> Path:
    """Where the results of a GPU, by its slug, are."""
    return results / f"{gpu}-paper.json"


def write_paper(path: Path, found: PaperResults) -> None:
    """Write the file anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found), indent=1) + "\n")


def read_paper(path: Path) -> PaperResults | None:
    """A run's results; None where there is no file.

    Raises:
        ConfigError: the file is not one that a run wrote.
    """
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        return PaperResults(
            about=document["about"],
            modes=document["modes"],
            parts=[PartsRow(**row) for row in document["parts"]],
            compiled=[CompileRow(**row) for row in document["compiled"]],
            mismatch=[MismatchRow(**row) for row in document["mismatch"]],
            left_out=document["left_out"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"results: must be a file that `tilemlp bench paper` wrote, is {path}: {error!r}"
        ) from None
