"""The README's blocks of the engine alone and of a request's time budget, from results files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from service.bench.budget import STAGES, read_rows
from service.bench.markdown import markdown_table, percent


def engine_bench_table(results: Path) -> str:
    """What `tilemlp bench engine` last wrote, with where and how."""
    (path,) = results.glob("*-engine.csv")
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    header = ("model", "batch", "batches/s", "GB/s", "GPU busy", "of the bus", "µs alone")
    rows = [
        (
            one["model"],
            f"{one['requests']} × {one['rows']}",
            one["batches_per_s"],
            one["gbytes_per_s"],
            percent(float(one["busy_share"])),
            percent(float(one["bus_share"])),
            f"{float(one['alone_us']):.0f}, device {float(one['device_us']):.0f}",
        )
        for one in found
    ]
    about = _about(path)
    return (
        f"{markdown_table(header, rows)}\n\nBatches of requests × rows, a layer, activations "
        f"both ways; `of the bus` is of the {about['bus_bytes_per_s'] / 1e9:.0f} GB/s each way "
        f"that page-locked copies reach both ways at once. Busy is between events around "
        f"each kernel: for kernels of microseconds a part of their launches counts too. "
        f"{_where(about)}"
    )


def budget_table(results: Path) -> str:
    """What `tilemlp bench budget` last wrote, with its picture."""
    (path,) = results.glob("*-budget.csv")
    names = [stage.removesuffix("_us").replace("_", "/") for stage in STAGES]
    header = ("model", "clients × rows", "requests/s", "GB/s", "p50 µs", "p99 µs", "in it", *names)
    rows = [
        (
            row.model,
            f"{row.connections} × {row.rows}",
            f"{row.requests_per_s:.0f}",
            f"{row.gbytes_per_s:.2f}",
            f"{row.p50_us:.0f}",
            f"{row.p99_us:.0f}",
            f"{row.request_us:.0f}",
            *(f"{getattr(row, stage):.0f}" for stage in STAGES),
        )
        for row in read_rows(path)
    ]
    return (
        f"![time budget](service/bench/results/{path.stem}.png)\n\n{markdown_table(header, rows)}"
        f"\n\nMeans in microseconds; `in it` is a request inside the service, from its headers to "
        f"its answer's handing over, and what follows are its parts; h2d to d2h are those of its "
        f"batch. {_where(_about(path))}"
    )


def _about(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return found


def _where(about: dict[str, Any]) -> str:
    return (
        f"{about['gpu']}, driver {about.get('driver', '?')}, torch {about['versions']['torch']}, "
        f"{about['machine']}, commit {about['commit']}, {about['date'][:10]}, `{about['command']}`."
    )
