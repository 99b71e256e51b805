"""`tilemlp bench soak`: full load for a long time; memory, errors and latency window by window."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.kernel_options import Progress
from service.bench.served import Samples, ServedModel
from service.cgroups import cores
from service.config import default_workers
from service.engine.gpus import gpu_slug
from service.load.options import LoadOptions
from service.load.run import run_load

# Graphs, large batches and several of them in flight.
ROWS = ((1, 0.4), (64, 0.4), (700, 0.15), (2048, 0.05))
CONNECTIONS = 32
PROCESSES = 4
WINDOWS = 10
# Of the processes that send, before and behind the load they report of.
WINDOW_OVERHEAD_S = 3.0
MIN_WINDOW_S = 1.0
# The first, in which everything is used for the first time, and two to compare.
FEWEST_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How long, and where it goes.

    Attributes:
        model: Preset.
        seconds: In all, with the service's start and what the sending processes cost.
        results: Directory of the results file.
        command: What a reader would type.
        commit: Where there is no checkout to ask.
    """

    model: str
    seconds: float
    results: Path
    command: str
    commit: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """One part of the soak, and what was in use at its end.

    Attributes:
        seconds: Of load.
        host_bytes: Resident memory of the service's processes, without what they share.
        gpu_bytes: Memory in use on all its GPUs, by whichever process; 0 without one.
    """

    seconds: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int
    host_bytes: int
    gpu_bytes: int


def run_soak(options: SoakOptions, progress: Progress) -> list[str]:
    """Run the windows, fewer where time runs short, and return lines to print.

    `<gpu>-soak.json` is written behind each window from the second on, so that a run that is cut
    keeps what it has.

    Raises:
        StartError: the service did not start, or could not be asked.
    """
    end_s = time.monotonic() + options.seconds
    windows: list[Window] = []
    workers = default_workers(cores())
    with ServedModel(preset=options.model, workers=workers) as served:
        for index in range(WINDOWS):
            if index >= FEWEST_WINDOWS and time.monotonic() >= end_s:
                break
            progress(index, WINDOWS, f"window {index + 1} of {WINDOWS}")
            windows.append(_run_window(served, window_seconds(end_s, index), index))
            if index:
                _write(options, workers, windows)
    return [_line(index, window) for index, window in enumerate(windows)] + [
        f"{name}: {value}" for name, value in summarise(windows).items()
    ]


def window_seconds(end_s: float, index: int) -> float:
    """How long window `index` may load the service, so that all are over at `end_s`.

    Args:
        end_s: On the clock of `time.monotonic`.
        index: Of `WINDOWS`, from 0.
    """
    share = (end_s - time.monotonic()) / (WINDOWS - index)
    return max(share - WINDOW_OVERHEAD_S, MIN_WINDOW_S)


def _write(options: SoakOptions, workers: int, windows: list[Window]) -> None:
    on_gpu = torch.cuda.is_available()
    about = {
        **describe_environment(options.command, commit=options.commit),
        **(describe_gpu() if on_gpu else {}),
        "model": options.model,
        "seconds": round(sum(window.seconds for window in windows), 1),
        "workers": workers,
        "connections": CONNECTIONS,
        "rows": ROWS,
        **summarise(windows),
        "windows": [asdict(window) for window in windows],
    }
    slug = gpu_slug(str(about["gpu"])) if on_gpu else "cpu"
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{slug}-soak.json").write_text(json.dumps(about, indent=1) + "\n")


def _run_window(served: ServedModel, seconds: float, seed: int) -> Window:
    options = LoadOptions(
        url=served.url,
        rows=ROWS,
        connections=CONNECTIONS,
        duration_s=seconds,
        warm_up_s=0.0,
        processes=PROCESSES,
        seed=seed,
        quiet=True,
    )
    (result,) = run_load(options).results
    samples = served.samples()
    latency = result.latency
    return Window(
        seconds=round(seconds, 1),
        requests_per_s=round(result.requests_per_s, 1),
        p50_ms=0.0 if latency is None else round(latency.p50_s * 1e3, 3),
        p99_ms=0.0 if latency is None else round(latency.p99_s * 1e3, 3),
        errors=result.errors,
        host_bytes=served.resident_bytes(),
        gpu_bytes=gpu_bytes(samples),
    )


def gpu_bytes(samples: Samples) -> int:
    """Memory in use on all GPUs that the service shows."""
    return int(sum(v for name, v in samples.items() if name.startswith("mlp_gpu_memory_used_")))


def summarise(windows: list[Window]) -> dict[str, float | None]:
    """Growth from the second window on, in which everything has been used once, to the last."""
    settled = windows[1:]
    return {
        "errors": sum(window.errors for window in windows),
        "host_growth_bytes": settled[-1].host_bytes - settled[0].host_bytes,
        "gpu_growth_bytes": settled[-1].gpu_bytes - settled[0].gpu_bytes,
        "p99_last_over_first": round(settled[-1].p99_ms / settled[0].p99_ms, 3)
        if settled[0].p99_ms
        else None,
    }


def _line(index: int, window: Window) -> str:
    return (
        f"{index + 1:3d}  {window.requests_per_s:9.1f} requests/s  p50 {window.p50_ms:8.3f} ms  "
        f"p99 {window.p99_ms:8.3f} ms  errors {window.errors}  host "
        f"{window.host_bytes / 2**20:8.1f} MiB  GPU {window.gpu_bytes / 2**20:9.1f} MiB"
    )
