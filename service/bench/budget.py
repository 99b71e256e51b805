"""`tilemlp bench budget`: where a request's time goes, in the real service under real load."""

from __future__ import annotations

import csv
import json
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from service.bench.csv_file import write_csv
from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.kernel_options import Progress
from service.bench.served import Samples, ServedModel
from service.engine.gpus import gpu_slug
from service.load.options import LoadOptions
from service.load.report import LoadResult
from service.load.run import run_load

# Connections and rows per request.
LOADS = ((1, 1), (32, 64), (16, 2048))
# One process of clients keeps up with so many connections.
_CONNECTIONS_A_PROCESS = 4
_PER_REQUEST = ("receive", "decode", "queue", "encode")


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """What to measure, and where it goes.

    Attributes:
        models: Presets.
        seconds: Of each load.
        results: Directory of the results files.
        command: What a reader would type.
        commit: Where there is no checkout to ask.
    """

    models: tuple[str, ...]
    seconds: float
    results: Path
    command: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One load. Times are means in microseconds, in the order in which they pass.

    Attributes:
        model: Preset.
        connections: Requests in flight, closed loop.
        rows: Of a request.
        requests_per_s: Right answers.
        gbytes_per_s: Bodies, both ways.
        p50_us: As the client sees it.
        p99_us: The same.
        request_us: Inside the service, from the headers to the answer's handing over.
        receive_us: Of it, as all that follow.
        decode_us: Body to rows.
        queue_us: Waiting for the engine.
        h2d_us: Of the batch, as the next three.
        gate_up_us: The fused kernel; everything that computes where it is not one of ours.
        down_us: Down projection.
        d2h_us: To the answers.
        encode_us: Rows to body.
        other_us: What none of these is: the event loop, hand-overs between threads, its host time.
        batch_tokens: Mean rows of a batch.
        busy_share: Share of the time in which the device computed.
        errors: Requests without a right answer.
    """

    model: str
    connections: int
    rows: int
    requests_per_s: float
    gbytes_per_s: float
    p50_us: float
    p99_us: float
    request_us: float
    receive_us: float
    decode_us: float
    queue_us: float
    h2d_us: float
    gate_up_us: float
    down_us: float
    d2h_us: float
    encode_us: float
    other_us: float
    batch_tokens: float
    busy_share: float
    errors: int


STAGES = tuple(
    field.name
    for field in fields(BudgetRow)
    if field.name.endswith("_us") and field.name not in {"p50_us", "p99_us", "request_us"}
)


def run_budget_bench(options: BudgetOptions, progress: Progress) -> list[str]:
    """Measure all loads, write `<gpu>-budget.csv` and `.json`, and return lines to print.

    Raises:
        StartError: the service did not start, or could not be asked.
    """
    total = len(options.models) * len(LOADS)
    path, about = _describe(options)
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    rows: list[BudgetRow] = []
    with ExitStack() as stack:
        # All at once, since starting takes longer than measuring; then one after the other.
        served = []
        for model in options.models:
            served.append(ServedModel(preset=model, workers=0))
            stack.callback(served[-1].close)
        for model, one in zip(options.models, served, strict=True):
            one.wait_ready()
            for connections, count in LOADS:
                progress(len(rows), total, f"{model}, {connections} x {count} rows")
                rows.append(_measure(one, model, connections, count, options.seconds))
                # After each, so that a run that is cut has not been for nothing.
                write_rows(path, rows)
    return [_line(row) for row in rows]


def _describe(options: BudgetOptions) -> tuple[Path, dict[str, object]]:
    """Where the rows go, and where and how they were measured."""
    on_gpu = torch.cuda.is_available()
    about = {
        **describe_environment(options.command, commit=options.commit),
        **(describe_gpu() if on_gpu else {}),
        "seconds": options.seconds,
    }
    slug = gpu_slug(str(about["gpu"])) if on_gpu else "cpu"
    options.results.mkdir(parents=True, exist_ok=True)
    return options.results / f"{slug}-budget.csv", about


def _measure(
    served: ServedModel, model: str, connections: int, rows: int, seconds: float
) -> BudgetRow:
    options = LoadOptions(
        url=served.url,
        rows=((rows, 1.0),),
        connections=connections,
        duration_s=seconds,
        warm_up_s=min(0.5, seconds / 2),
        processes=-(-connections // _CONNECTIONS_A_PROCESS),
        quiet=True,
    )
    before = served.samples()
    report = run_load(options)
    after = served.samples()
    return make_row(model, connections, rows, report.results[0], before, after)


def make_row(  # noqa: PLR0917 - what was asked, what was found
    model: str, connections: int, rows: int, result: LoadResult, before: Samples, after: Samples
) -> BudgetRow:
    """The line of one load, from what the client saw and what the metrics grew by."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    def mean_us(name: str, label: str) -> float:
        count = grown(f"{name}_count{{{label}}}")
        return grown(f"{name}_sum{{{label}}}") / count * 1e6 if count else 0.0

    stages = {
        f"{stage}_us": mean_us("mlp_stage_duration_seconds", f'stage="{stage}"')
        for stage in (*_PER_REQUEST, "h2d", "compute", "d2h")
    }
    compute_us = stages.pop("compute_us")
    down_us = mean_us("mlp_kernel_duration_seconds", 'kernel="down"')
    stages |= {"gate_up_us": compute_us - down_us, "down_us": down_us}
    request_us = mean_us("mlp_request_duration_seconds", 'api="mlp"')
    # Of the warm-up too, which the client does not count, but the metrics do.
    requests = grown('mlp_requests_total{api="mlp",outcome="ok"}')
    elapsed_s = requests / result.requests_per_s if result.requests_per_s else float("inf")
    batches = grown("mlp_batch_tokens_count")
    latency = result.latency
    return BudgetRow(
        model=model,
        connections=connections,
        rows=rows,
        requests_per_s=round(result.requests_per_s, 1),
        gbytes_per_s=round((result.sent_bytes_per_s + result.received_bytes_per_s) / 1e9, 4),
        p50_us=0.0 if latency is None else round(latency.p50_s * 1e6, 1),
        p99_us=0.0 if latency is None else round(latency.p99_s * 1e6, 1),
        request_us=round(request_us, 1),
        other_us=round(request_us - sum(stages.values()), 1),
        batch_tokens=round(grown("mlp_batch_tokens_sum") / batches, 1) if batches else 0.0,
        busy_share=round(grown("mlp_gpu_busy_seconds_total") / elapsed_s, 4),
        errors=result.errors,
        **{name: round(value, 1) for name, value in stages.items()},
    )


def write_rows(path: Path, rows: list[BudgetRow]) -> None:
    """Write the file anew."""
    columns = [field.name for field in fields(BudgetRow)]
    write_csv(path, columns, ([getattr(row, name) for name in columns] for row in rows))


def read_rows(path: Path) -> list[BudgetRow]:
    """What `write_rows` wrote."""
    kinds = {"model": str, "connections": int, "rows": int, "errors": int}
    with path.open(newline="") as file:
        return [
            BudgetRow(**{name: kinds.get(name, float)(cell) for name, cell in line.items()})
            for line in csv.DictReader(file)
        ]


def _line(row: BudgetRow) -> str:
    parts = ", ".join(f"{name.removesuffix('_us')} {getattr(row, name):.0f}" for name in STAGES)
    return (
        f"{row.model} {row.connections} x {row.rows}: {row.requests_per_s:.0f} requests/s, "
        f"{row.gbytes_per_s:.2f} GB/s, p50 {row.p50_us:.0f} us, p99 {row.p99_us:.0f} us, errors "
        f"{row.errors}, busy {row.busy_share:.2f}; in the service {row.request_us:.0f} us: {parts}"
    )
