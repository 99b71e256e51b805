"""Time kernel configurations of libswiglu.so against cuBLAS on a GPU, in the steady state.

    python -m tests.csrc.gpu_time build/csrc/libswiglu.so --out results.json
        [--models 0.5B,7B] [--tokens 1024,2048] [--variants gemm,pp_128x192_c2x1:m:1] [--rounds 3]

A variant is `gemm` (the bare cuBLAS GEMM on [2N, K], no activation), `eager`, `auto` (what the
library chooses), or a configuration's name with raster (m, n or -), swizzle (0 = the library's
choice) and `w` for SWIGLU_WEIGHTS_CONSTANT. Every variant of a size is captured once as a CUDA
graph that walks over weight sets of more than 400 MB. A visit replays the graph for the settling
time and then for the measuring time; the order of visits is shuffled each round, and the median of
the rounds is reported, with power and SM clock sampled during the visit.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

import pynvml
import torch
from torch.nn import functional

from tests.csrc import abi
from tests.csrc.cases import QWEN, say
from tests.csrc.gpu_run import Swiglu, interleave_rows

ROTATE_BYTES = 400e6


class Sizes:
    """Tensors of one model shape: enough weight sets to rotate over, in both layouts if asked."""

    def __init__(self, k: int, n: int, max_tokens: int) -> None:
        sets = max(1, -(-int(ROTATE_BYTES) // (4 * n * k)))
        self.k, self.n = k, n
        self.weights = [self.draw(2 * n, k) * 0.02 for _ in range(sets)]
        self.interleaved: list[torch.Tensor] = []
        self.x = self.draw(max_tokens, k)
        self.out = torch.empty(max_tokens, n, dtype=torch.bfloat16, device="cuda")
        self.both = torch.empty(max_tokens, 2 * n, dtype=torch.bfloat16, device="cuda")

    @staticmethod
    def draw(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")

    def physical(self) -> list[torch.Tensor]:
        if not self.interleaved:
            self.interleaved = [interleave_rows(w) for w in self.weights]
        return self.interleaved


def make_calls(variant: str, libraries: list[Swiglu], sizes: Sizes, tokens: int):
    """The calls of one pass over all weight sets."""
    x = sizes.x[:tokens]
    if variant == "gemm":
        return [lambda w=w: torch.mm(x, w.T, out=sizes.both[:tokens]) for w in sizes.weights]
    if variant == "eager":
        n = sizes.n
        return [lambda w=w: functional.silu(x @ w[:n].T) * (x @ w[n:].T) for w in sizes.weights]
    given = variant.split(":")
    name, raster, swizzle, flags = given + ["-", "0", ""][len(given) - 1 :]
    swiglu = libraries[int(name.startswith("other/"))]
    config = swiglu.by_name.get(name.removeprefix("other/"))  # None for auto
    weights = sizes.physical() if config and config.granularity == -1 else sizes.weights
    options = {
        "config": config.id if config else abi.CONFIG_AUTO,
        "raster": {"-": abi.RASTER_AUTO, "m": abi.RASTER_ALONG_M, "n": abi.RASTER_ALONG_N}[raster],
        "swizzle": int(swizzle),
        "flags": abi.WEIGHTS_CONSTANT if flags == "w" else 0,
    }
    launches = [swiglu.args(x, w, sizes.out[:tokens], **options) for w in weights]
    return [lambda a=args: swiglu.launch(a) for args in launches]


class Graph:
    """One captured pass; `seconds` estimates it."""

    def __init__(self, calls) -> None:
        calls[0]()
        torch.cuda.synchronize()
        self.calls = len(calls)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for call in calls:
                call()
        self.graph.replay()
        self.seconds = self.time(3) / 3

    def time(self, replays: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


class Meter:
    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self) -> tuple[float, int]:
        watts = pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        return watts, pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM)

    def describe(self) -> dict:
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1e3
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "power_limit_watts": limit}


def visit(graph: Graph, settle: float, measure: float, meter: Meter) -> tuple[float, float, int]:
    """Microseconds a call in the steady state, watts and SM megahertz near the end of the visit."""
    for _ in range(max(1, round(settle / graph.seconds))):
        graph.graph.replay()
    replays = max(1, round(measure / graph.seconds))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.graph.replay()
    end.record()
    time.sleep(0.8 * (settle + measure))
    watts, clock = meter.read()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / (replays * graph.calls), watts, clock


def measure(graphs: dict[str, Graph], options, meter) -> dict:
    """Visit every graph in each of the rounds, in shuffled order."""
    visits: dict[str, list] = {v: [] for v in graphs}
    for _ in range(options.rounds):
        for variant in random.sample(list(graphs), len(graphs)):
            visits[variant].append(visit(graphs[variant], options.settle, options.measure, meter))
    return {
        v: {
            "us": statistics.median(t for t, _, _ in seen),
            "all_us": [round(t, 2) for t, _, _ in seen],
            "watts": statistics.median(w for _, w, _ in seen),
            "mhz": statistics.median(c for _, _, c in seen),
        }
        for v, seen in visits.items()
    }


def row_of(model, tokens, results) -> str:
    base = results.get("gemm", next(iter(results.values())))["us"]
    cells = [f"{r['us'] / base:6.3f}" for v, r in results.items() if v != "gemm"]
    gemm = results.get("gemm", {"us": base, "watts": 0, "mhz": 0})
    return (
        f"{model:5} {tokens:6} {gemm['us']:9.1f} {gemm['watts']:4.0f} {gemm['mhz']:5.0f} "
        + " ".join(cells)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--other", help="a second build; its variants are named other/<name>")
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default=",".join(QWEN))
    parser.add_argument("--tokens", default="1024,2048,4096,8192")
    parser.add_argument("--variants", default="gemm,eager,pp_128x192_c2x1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=0.04)
    parser.add_argument("--measure", type=float, default=0.12)
    parser.add_argument(
        "--stop-after", type=float, default=1e9, help="seconds; later sizes are left out"
    )
    options = parser.parse_args()
    libraries = [Swiglu(path) for path in (options.library, options.other) if path]
    meter = Meter()
    variants = options.variants.split(",")
    tokens = [int(t) for t in options.tokens.split(",")]
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "library": libraries[0].library.swiglu_build_info().decode(),
        "command": sys.argv,
        "rows": [],
        **meter.describe(),
    }
    started = time.monotonic()
    for index, variant in enumerate(v for v in variants if v != "gemm"):
        say(f"column {index + 1}: {variant}")
    say("model      M   gemm_us watt   mhz  time / gemm's")
    for model in options.models.split(","):
        k, n = QWEN[model]
        sizes = Sizes(k, n, max(tokens))
        for m in tokens:
            if time.monotonic() - started > options.stop_after:
                say("stopped: out of time")
                break
            graphs = {v: Graph(make_calls(v, libraries, sizes, m)) for v in variants}
            results = measure(graphs, options, meter)
            report["rows"].append({"model": model, "tokens": m, "k": k, "n": n, "results": results})
            say(row_of(model, m, results))
            with open(options.out, "w") as file:
                json.dump(report, file)
        del sizes
        torch.cuda.empty_cache()
    say(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
