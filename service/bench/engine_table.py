"""The README's blocks of the engine, of a request's time budget and of the soak."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.bench.budget import STAGES, read_rows
from service.bench.engine_results import case_of, read_conditions, read_engine_rows
from service.bench.markdown import markdown_table, percent


def engine_bench_table(results: Path) -> str:
    """What `tilemlp bench engine` last wrote, with where and how."""
    (path,) = results.glob("*-engine.csv")
    found = read_engine_rows(path)
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
    about = read_conditions(path)
    return (
        f"{markdown_table(header, rows)}\n\nBatches of requests × rows, a layer, activations "
        f"both ways; `of the bus` is of the {about['bus_bytes_per_s'] / 1e9:.0f} GB/s each way "
        f"that page-locked copies reach both ways at once. {_busy(about)} {_where(about)}"
    )


def _busy(about: Mapping[str, Any]) -> str:
    """What the file's busy share counts."""
    if about.get("busy") == "kernels":
        return (
            "Busy is between events around each kernel: for kernels of microseconds a part of "
            "their launches counts too."
        )
    return (
        "Busy is from a batch's first launch to its last kernel's end, so for batches of "
        "microseconds the launches count too."
    )


def more_gpus_table(results: Path) -> str:
    """The engine on several GPUs against one, where `bench engine --devices` has measured it."""
    blocks = []
    for path in sorted(results.glob("*-engine-x*.csv")):
        count = path.stem.rpartition("-engine-x")[2]
        about = read_conditions(path)
        # Of its time: what one does by now is no measure for what several did then.
        one = about.get("one_gpu", {"commit": "none", "batches_per_s": {}})
        rows = []
        for row in read_engine_rows(path):
            alone = one["batches_per_s"].get(case_of(row))
            together = row["batches_per_s"]
            compared = (
                ("", together, "")
                if alone is None
                else (f"{alone:.1f}", together, f"{float(together) / alone:.2f}×")
            )
            batch = f"{row['requests']} × {row['rows']}"
            rows.append((row["model"], batch, *compared, percent(float(row["busy_share"]))))
        header = ("model", "batch", "one GPU, batches/s", f"{count} GPUs", "ratio", "busy")
        blocks.append(
            f"{markdown_table(header, rows)}\n\nOne GPU at commit {one['commit']}. {_where(about)}"
        )
    return "\n\n".join(blocks) or "Not measured yet."


def soak_sentences(results: Path) -> str:
    """What `tilemlp bench soak` last saw."""
    found = []
    for path in sorted(results.glob("*-soak.json")):
        about: dict[str, Any] = json.loads(path.read_text())
        windows = about["windows"][1:]
        rates = [window["requests_per_s"] for window in windows]
        tails = [window["p99_ms"] for window in windows]
        found.append(
            f"{about['seconds']:.0f} s of {about['connections']} connections of mixed requests "
            f"({', '.join(f'{rows} rows: {share:.0%}' for rows, share in about['rows'])}) at "
            f"{about['model']}, {about['workers']} front ends: {min(rates):.0f} to "
            f"{max(rates):.0f} requests/s, p99 {min(tails):.1f} to {max(tails):.1f} ms from window "
            f"to window, {about['errors']} errors; from the second window to the last, anonymous "
            f"memory of all processes grew by {about['host_growth_bytes'] / 2**20:+.1f} MiB and "
            f"memory of the GPU by {about['gpu_growth_bytes'] / 2**20:+.1f} MiB{_noted(about)}. "
            f"{_where(about)}"
        )
    return "\n\n".join(found) or "Not measured yet."


def _noted(about: Mapping[str, Any]) -> str:
    return f" ({about['note']})" if "note" in about else ""


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
        f"batch. {_where(read_conditions(path))}"
    )


def _where(about: dict[str, Any]) -> str:
    return (
        f"{about['gpu']}, driver {about.get('driver', '?')}, torch {about['versions']['torch']}, "
        f"{about['machine']}, commit {about['commit']}, {about['date'][:10]}, `{about['command']}`."
    )
