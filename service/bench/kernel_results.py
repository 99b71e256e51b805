"""`<gpu>-kernels.csv` and `.json`: one row a size, and where and how it was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from service.bench.csv_file import read_csv, write_csv


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One line of the results file; None where a variant was not run.

    Attributes:
        model: Preset.
        tokens: M.
        hidden: K.
        intermediate: N.
        eager_us: Microseconds a call, as all `_us`.
        compile_us: torch.compile of eager.
        merged_us: One GEMM and one elementwise kernel.
        gemm_us: That GEMM alone.
        quack_us: QuACK's gemm_gated.
        kernel1_us: The best instance of Kernel-1.
        kernel2_us: The best instance of Kernel-2.
        fused_us: What the library chooses.
        chosen: Name of that instance.
        mismatch_eager: Share of eager's elements off by more than 1 % from FP64.
        mismatch_fused: The same of ours.
        hbm_fraction: Compulsory bytes over our time, of the read rate of the same run.
    """

    model: str
    tokens: int
    hidden: int
    intermediate: int
    eager_us: float | None = None
    compile_us: float | None = None
    merged_us: float | None = None
    gemm_us: float | None = None
    quack_us: float | None = None
    kernel1_us: float | None = None
    kernel2_us: float | None = None
    fused_us: float | None = None
    chosen: str | None = None
    mismatch_eager: float | None = None
    mismatch_fused: float | None = None
    hbm_fraction: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What makes a row unique."""
        return self.model, self.tokens


COLUMNS = tuple(field.name for field in fields(KernelRow))
_TEXT = ("model", "chosen")
_WHOLE = ("tokens", "hidden", "intermediate")
_DIGITS = {"mismatch_eager": 7, "mismatch_fused": 7, "hbm_fraction": 4}


def csv_path(results: Path, gpu: str) -> Path:
    """Where the rows of a GPU, by its slug, are."""
    return results / f"{gpu}-kernels.csv"


def write_rows(path: Path, rows: Sequence[KernelRow]) -> None:
    """Write the file anew."""
    write_csv(
        path, COLUMNS, ([_cell(name, getattr(row, name)) for name in COLUMNS] for row in rows)
    )


def read_rows(path: Path) -> list[KernelRow]:
    """All rows of a file.

    Raises:
        ConfigError: there is no such file, or it has other columns.
    """
    return [
        KernelRow(**{name: _value(name, text) for name, text in line.items()})
        for line in read_csv(path, COLUMNS)
    ]


class SizedRow(Protocol):
    """A row of a results file that has one for each model and number of tokens."""

    @property
    def key(self) -> tuple[str, int]:
        """Model and tokens."""

    @property
    def hidden(self) -> int:
        """Of the model."""

    @property
    def intermediate(self) -> int:
        """Of the model."""

    @property
    def tokens(self) -> int:
        """M."""


_Row = TypeVar("_Row", bound=SizedRow)


def merge_rows(old: Sequence[_Row], new: Sequence[_Row]) -> list[_Row]:
    """Whole rows of `new` instead of those of `old`, never cells, in the order of size.

    Times of one row are compared with each other, so they must be of one run.
    """
    rows = {row.key: row for row in (*old, *new)}
    return sorted(rows.values(), key=lambda row: (row.hidden * row.intermediate, row.tokens))


def supersede(old: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Earlier runs without the sizes that `new` measured again, and without runs left with none."""
    again = {(size["model"], size["tokens"]) for size in new["sizes"]}
    kept = []
    for run in old:
        sizes = [size for size in run["sizes"] if (size["model"], size["tokens"]) not in again]
        if sizes:
            kept.append({**run, "sizes": sizes})
    return [*kept, new]


def write_about(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Write the runs that a results file came from, the latest last."""
    path.write_text(json.dumps({"runs": list(runs)}, indent=1) + "\n")


def read_about(path: Path) -> list[dict[str, Any]]:
    """The runs that a results file came from; none where there is no file."""
    if not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_DIGITS.get(name, 2)}f}"
    return str(value)


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - the columns differ in type
    if name in _TEXT:
        return text or None
    if name in _WHOLE:
        return int(text)
    return float(text) if text else None
