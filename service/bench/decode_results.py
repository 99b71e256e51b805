"""`<gpu>-decode.csv`: one row a size of few tokens, gate/up, down and the whole MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from service.bench.csv_file import read_csv, write_csv


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One line of the results file.

    Attributes:
        model: Preset.
        tokens: M.
        hidden: Of the model.
        intermediate: Of the model.
        gate_up_eager_us: Microseconds a call, as all `_us`: gate/up as a model's code has it.
        gate_up_gemm_us: One cuBLAS GEMM for gate and up, without the activation.
        gate_up_us: Ours, with it.
        gate_up_config: Name of its kernel.
        down_gemm_us: The down projection by cuBLAS.
        down_us: The same by our kernel.
        down_config: Name of it.
        mlp_eager_us: The whole MLP as a model's code has it.
        mlp_merged_us: The whole MLP as inference servers have it: a GEMM, an elementwise kernel,
            a GEMM.
        mlp_us: Ours: gate/up, then down by whichever is expected to be faster.
        gate_up_hbm: Compulsory bytes over time, of the read rate of the same run.
        down_hbm: The same of the down projection.
        mlp_hbm: The same of the whole MLP.
    """

    model: str
    tokens: int
    hidden: int
    intermediate: int
    gate_up_eager_us: float
    gate_up_gemm_us: float
    gate_up_us: float
    gate_up_config: str
    down_gemm_us: float
    down_us: float
    down_config: str
    mlp_eager_us: float
    mlp_merged_us: float
    mlp_us: float
    gate_up_hbm: float
    down_hbm: float
    mlp_hbm: float

    @property
    def key(self) -> tuple[str, int]:
        """Model and tokens: there is one row for each."""
        return self.model, self.tokens


COLUMNS = tuple(field.name for field in fields(DecodeRow))
_TEXT = ("model", "gate_up_config", "down_config")
_WHOLE = ("tokens", "hidden", "intermediate")


def decode_path(results: Path, gpu: str) -> Path:
    """Where the rows of a GPU, by its slug, are."""
    return results / f"{gpu}-decode.csv"


def write_decode_rows(path: Path, rows: Sequence[DecodeRow]) -> None:
    """Write the file anew."""
    write_csv(
        path, COLUMNS, ([_cell(name, getattr(row, name)) for name in COLUMNS] for row in rows)
    )


def read_decode_rows(path: Path) -> list[DecodeRow]:
    """All rows of a file.

    Raises:
        ConfigError: there is no such file, or it has other columns.
    """
    return [
        DecodeRow(**{name: _value(name, text) for name, text in line.items()})
        for line in read_csv(path, COLUMNS)
    ]


def _cell(name: str, value: float | str) -> str:
    if isinstance(value, float):
        return f"{value:.{4 if name.endswith('_hbm') else 2}f}"
    return str(value)


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - the columns differ in type
    if name in _TEXT:
        return text
    return int(text) if name in _WHOLE else float(text)
