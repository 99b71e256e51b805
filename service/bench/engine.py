"""`tilemlp bench engine`: how busy the fused engine alone keeps a GPU, and what a batch costs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from service.bench.csv_file import write_csv
from service.bench.engine_feed import Alone, Case, Fed, keep_supplied, run_alone
from service.bench.engine_results import csv_path, read_one_gpu
from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.kernel_options import Progress, require_gpu
from service.engine.base import Engine, Output
from service.engine.create import create_engine
from service.engine.gpus import gpu_slug

# 16 requests of 2048 rows are four batches of 8192 rows, the largest the service makes.
CASES = (Case(1, 1), Case(8, 64), Case(32, 64), Case(1, 512), Case(4, 512), Case(4, 2048))
_COPIED_BYTES = 64 << 20
_COPIES = 20
# The first copies of a process are slower, and other guests of a host take their share at times.
_BUS_TRIES = 6


@dataclass(frozen=True, slots=True)
class EngineBenchOptions:
    """What to measure, and where it goes.

    Attributes:
        models: Presets, one layer each.
        devices: GPUs with a replica each; none for the first alone.
        seconds: Of each case under full load.
        results: Directory of the results files.
        command: What a reader would type.
        commit: Where there is no checkout to ask.
    """

    models: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: float
    results: Path
    command: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One line of the results file.

    Attributes:
        model: Preset.
        requests: Requests of a batch.
        rows: Rows of a request.
        batches_per_s: Under full load, as the next four.
        gbytes_per_s: Activations, both ways.
        busy_share: Time in which the device computed.
        bus_share: Bytes each way, of what pinned copies both ways at once reach in the same run, on
            as many GPUs.
        compute_us: Kernels of a batch.
        alone_us: Median of one batch at a time, from call to return.
        device_us: Copies and kernels of it.
    """

    model: str
    requests: int
    rows: int
    batches_per_s: float
    gbytes_per_s: float
    busy_share: float
    bus_share: float
    compute_us: float
    alone_us: float
    device_us: float


def run_engine_bench(options: EngineBenchOptions, progress: Progress) -> list[str]:
    """Measure all cases, write `<gpu>-engine.csv` and `.json`, and return lines to print.

    Raises:
        ConfigError: the fused engine does not run here.
        EngineError: a batch failed.
    """
    require_gpu("bench engine")
    total = len(options.models) * len(CASES)
    count = max(1, len(options.devices))
    gpu = describe_gpu()
    slug = gpu_slug(str(gpu["gpu"]))
    one_gpu = read_one_gpu(csv_path(options.results, slug, 1)) if count > 1 else None
    bus_bytes_per_s = count * measure_bus()
    rows: list[EngineRow] = []
    for model in options.models:
        engine, _ = create_engine(
            model=None,
            preset=model,
            model_name=None,
            layers=None,
            device="auto",
            devices=options.devices,
            backend="fused",
        )
        engine.warm_up(max(case.tokens for case in CASES))
        for case in CASES:
            progress(len(rows), total, f"{model}, {case.requests} x {case.rows} rows")
            alone = run_alone(engine, case)
            fed = keep_supplied(engine, case, options.seconds)
            rows.append(make_row(model, engine, case, alone, fed, bus_bytes_per_s))
        engine.close()
    about = {
        **describe_environment(options.command, ("torch",), options.commit),
        **gpu,
        "seconds": options.seconds,
        "gpus": count,
        "concurrency": engine.concurrency,
        "bus_bytes_per_s": bus_bytes_per_s,
        "busy": "kernels",
        **({"one_gpu": one_gpu} if one_gpu else {}),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = csv_path(options.results, slug, count)
    _write_rows(path, rows)
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    return [_line(row) for row in rows]


def make_row(  # noqa: PLR0917 - what was measured, in order
    model: str, engine: Engine, case: Case, alone: Alone, fed: Fed, bus_bytes_per_s: float
) -> EngineRow:
    """The line of one case."""
    spec = engine.model
    one_way = case.tokens * spec.hidden_size * spec.dtype.itemsize
    back = case.tokens * spec.width(Output.MLP) * spec.dtype.itemsize
    batches_per_s = fed.batches / fed.elapsed_s
    return EngineRow(
        model=model,
        requests=case.requests,
        rows=case.rows,
        batches_per_s=round(batches_per_s, 1),
        gbytes_per_s=round(batches_per_s * (one_way + back) / 1e9, 3),
        busy_share=round(fed.busy_s / fed.elapsed_s, 4),
        bus_share=round(batches_per_s * max(one_way, back) / bus_bytes_per_s, 4),
        compute_us=round(fed.busy_s / max(1, fed.batches) * 1e6, 1),
        alone_us=round(alone.total_s * 1e6, 1),
        device_us=round(alone.device_s * 1e6, 1),
    )


def measure_bus() -> float:
    """Bytes per second each way of page-locked copies in both directions at once, at best."""
    size = _COPIED_BYTES
    ups, downs = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    near, far = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def try_once() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        for stream in streams:
            stream.wait_event(begin)
        for _ in range(_COPIES):
            with torch.cuda.stream(streams[0]):
                near.copy_(ups, non_blocking=True)
            with torch.cuda.stream(streams[1]):
                downs.copy_(far, non_blocking=True)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        end.record()
        end.synchronize()
        return float(_COPIES * size / (begin.elapsed_time(end) / 1e3))

    return max(try_once() for _ in range(_BUS_TRIES))


def _write_rows(path: Path, rows: list[EngineRow]) -> None:
    columns = [field.name for field in fields(EngineRow)]
    write_csv(path, columns, ([getattr(row, name) for name in columns] for row in rows))


def _line(row: EngineRow) -> str:
    return (
        f"{row.model:13s} {row.requests:3d} x {row.rows:4d}  {row.batches_per_s:9.1f} batches/s  "
        f"{row.gbytes_per_s:7.2f} GB/s  busy {row.busy_share:.3f}  bus {row.bus_share:.3f}  "
        f"compute {row.compute_us:8.1f} us  alone {row.alone_us:8.1f} us, of which "
        f"{row.device_us:8.1f} on the device"
    )
