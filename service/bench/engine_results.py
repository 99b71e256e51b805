"""The results files of `tilemlp bench engine`: where they are, and what one GPU was measured at."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def csv_path(results: Path, gpu: str, count: int) -> Path:
    """Where the rows of so many GPUs, by their slug, are."""
    return results / (f"{gpu}-engine.csv" if count == 1 else f"{gpu}-engine-x{count}.csv")


def read_engine_rows(path: Path) -> list[dict[str, str]]:
    """The rows, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_conditions(path: Path) -> dict[str, Any]:
    """The conditions of a run, which stand beside its rows."""
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return found


def case_of(row: Mapping[str, str]) -> str:
    """What a row is of."""
    return f"{row['model']} {row['requests']} x {row['rows']}"


def read_one_gpu(path: Path) -> dict[str, object] | None:
    """What one GPU was last measured at, to be kept with what several are held against it."""
    if not path.exists():
        return None
    return {
        "commit": read_conditions(path)["commit"],
        "batches_per_s": {
            case_of(row): float(row["batches_per_s"]) for row in read_engine_rows(path)
        },
    }
