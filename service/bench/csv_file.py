"""Results files as CSV: a header, and lines of as many cells."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.errors import ConfigError


def write_csv(path: Path, columns: Sequence[str], lines: Iterable[Iterable[object]]) -> None:
    """Write the file anew."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(lines)


def read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """All lines of a file, by column.

    Raises:
        ConfigError: there is no such file, or it has other columns.
    """
    try:
        with path.open(newline="") as file:
            header, *lines = csv.reader(file)
    except (FileNotFoundError, ValueError):
        raise ConfigError(f"results: must be a file that a run wrote, is {path}") from None
    if header != list(columns):
        raise ConfigError(f"results: {path} must have the columns {', '.join(columns)}")
    return [dict(zip(columns, line, strict=True)) for line in lines]
