"""What the results files say that bears on the paper, and the byte model it is read with.

Bytes, 2 an element: a fused kernel reads x and both weights and writes [M, N] once. The paper's
unfused MLP also writes gate and up and reads them back, 4 more passes over [M, N]; torch's eager,
whose silu is a kernel of its own, writes and reads silu(gate) as well, 6 more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from service.bench.kernel_problem import Size
from service.bench.kernel_results import KernelRow, csv_path, read_about, read_rows
from service.bench.paper_options import PAPER_SIZES
from service.bench.paper_results import PaperResults, paper_path, read_paper
from service.engine.base import DType
from service.engine.peaks import peak_flops
from service.errors import ConfigError
from service.kernels.dispatch_table import TunedSize, read_table, table_path

PAPER_PASSES = 4
EAGER_PASSES = 6


def saved_bytes(size: Size, passes: int) -> int:
    """Bytes of so many passes over [M, N] in bf16."""
    return 2 * passes * size.tokens * size.intermediate


def intensity(size: Size, passes: int = 0) -> float:
    """FLOPs of gate and up per byte, with so many passes over [M, N] besides the fused kernel's."""
    return size.flops / (size.bytes + saved_bytes(size, passes))


def efficiency(us: float, fused_us: float, saved: int, bytes_per_s: float) -> float | None:
    """Speed-up over what the saved bytes predict: 1 where exactly their time was saved.

    Predicted is the unfused time less the time that the saved bytes take at the read rate; so the
    quotient of the two speed-ups is that over the fused time. None where nothing would be left.
    """
    predicted_us = us - saved / bytes_per_s * 1e6
    return predicted_us / fused_us if predicted_us > 0 else None


@dataclass(frozen=True)
class Evidence:
    """The results files of one GPU.

    Attributes:
        gpu: Its slug.
        rows: Of `<gpu>-kernels.csv`.
        runs: That they came from, the latest last.
        tuned: The dispatch table; empty where there is none.
        paper: `<gpu>-paper.json`; None where there is none.
    """

    gpu: str
    rows: tuple[KernelRow, ...]
    runs: tuple[dict[str, Any], ...]
    tuned: tuple[TunedSize, ...]
    paper: PaperResults | None

    @cached_property
    def paper_rows(self) -> list[KernelRow]:
        """Those of the paper's set that were measured."""
        keys = {(size.model, size.tokens) for size in PAPER_SIZES}
        return [row for row in self.rows if row.key in keys]

    @property
    def peak(self) -> float | None:
        """Dense bf16 FLOP/s by the data sheet; None for a card that is not listed."""
        return peak_flops(str(self.runs[-1]["gpu"]), DType.BF16)

    def run_of(self, row: KernelRow) -> dict[str, Any]:
        """The run that a row came from."""
        for run in self.runs[::-1]:
            if self._entry(run, row) is not None:
                return run
        return self.runs[-1]

    def read_rate(self, row: KernelRow) -> float:
        """Bytes per second read from memory in the row's run."""
        return float(self.run_of(row)["ceilings"]["hbm_read_bytes_per_s"])

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which the latest run's GEMM rate is the limit, not its read rate."""
        ceilings = self.runs[-1]["ceilings"]
        return float(ceilings["gemm_flops_per_s"]) / float(ceilings["hbm_read_bytes_per_s"])

    def conditions_of(self, row: KernelRow, variant: str) -> tuple[float, float] | None:
        """Watts and MHz at which a variant of a row was timed; None where the file lacks them."""
        entry = self._entry(self.run_of(row), row)
        timing = entry["variants"].get(variant) if entry else None
        return (float(timing["watts"]), float(timing["mhz"])) if timing else None

    def share_of_peak(self, row: KernelRow) -> float | None:
        """FLOP/s of our kernel over the data sheet's peak."""
        if not row.fused_us or not self.peak:
            return None
        return size_of(row).flops / row.fused_us * 1e6 / self.peak

    @staticmethod
    def _entry(run: dict[str, Any], row: KernelRow) -> dict[str, Any] | None:
        for entry in run.get("sizes", ()):
            if (entry["model"], entry["tokens"]) == row.key:
                return dict(entry)
        return None


def read_evidence(results: Path, tables: Path, gpu: str) -> Evidence:
    """All files of a GPU.

    Raises:
        ConfigError: there are no rows or no runs, or a file is not one that a run wrote.
        LibraryError: the dispatch table is not one that the tuner wrote.
    """
    path = csv_path(results, gpu)
    runs = tuple(read_about(path.with_suffix(".json")))
    if not runs:
        raise ConfigError(f"results: {path} must have the runs that it came from beside it")
    return Evidence(
        gpu=gpu,
        rows=tuple(read_rows(path)),
        runs=runs,
        tuned=tuple(read_table(table_path(gpu, tables))),
        paper=read_paper(paper_path(results, gpu)),
    )


def size_of(row: KernelRow) -> Size:
    """The shape of a row."""
    return Size(row.model, row.tokens)


def ratio(above: float | None, below: float | None) -> float | None:
    """Their quotient; None where one was not measured."""
    return above / below if above and below else None


def best(
    rows: Sequence[KernelRow], value: Callable[[KernelRow], float | None]
) -> tuple[float, KernelRow] | None:
    """The highest value and its row; None where no row has one."""
    found = [(it, row) for row in rows if (it := value(row)) is not None]
    return max(found, key=lambda pair: pair[0]) if found else None


def speedup(row: KernelRow) -> float | None:
    """Eager's time over ours."""
    return ratio(row.eager_us, row.fused_us)


def winner(row: KernelRow) -> int | None:
    """1 or 2, the faster kernel; None where one of them was not measured."""
    if row.kernel1_us is None or row.kernel2_us is None:
        return None
    return 1 if row.kernel1_us < row.kernel2_us else 2


def kernel_of(config: str) -> int:
    """1 or 2, out of the name of an instance."""
    return 1 if config.startswith("k1_") else 2
