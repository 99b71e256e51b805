"""The blocks of README.md that come from code and results files: `python -m service.readme`.

A block stands between `<!-- name -->` and `<!-- /name -->`; what is between them is replaced.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from service.bench.kernel_results import KernelRow, read_about, read_rows
from service.bench.markdown import describe_run, markdown_table
from service.bench.stub import StubEngine
from service.config import Settings
from service.metrics import GPU_GAUGES
from service.runtime import Runtime

RESULTS = Path(__file__).parent / "bench" / "results"


def settings_table() -> str:
    """Every setting with variable, default and meaning; flags are named alike."""
    rows = []
    for name, info in Settings.model_fields.items():
        default = "" if info.default is None else f"`{info.default}`"
        flag = name.replace("_", "-")
        rows.append((f"`MLP_{name.upper()}`", f"`--{flag}`", default, info.description or ""))
    return markdown_table(("variable", "flag", "default", "meaning"), rows)


def metrics_table() -> str:
    """Every metric with labels, type and meaning."""
    engine = StubEngine()
    # As with a GPU, or the table would lack its gauges.
    engine.peak_flops = 1.0
    metrics = Runtime(Settings(), engine).metrics
    metrics.gpus(lambda: {"0": dict.fromkeys(GPU_GAUGES, 0.0)})
    rows = [(f"`{name}`", kind, text) for name, kind, text in metrics.catalogue()]
    return markdown_table(("metric", "type", "meaning"), rows)


def service_bench_table() -> str:
    """What `tilemlp bench service` last wrote, with where and how."""
    about = json.loads((RESULTS / "cpu-service.json").read_text())
    with (RESULTS / "cpu-service.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    loop = {tuple(entry[:3]): entry[3] for entry in about["loop_us_per_request"]}
    rows = []
    for one in found:
        key = (one["server"], int(one["rows"]), int(one["clients"]))
        echo = loop["echo", key[1], key[2]]
        against = f"{loop[key] - echo:+.0f} µs, {loop[key] / echo:.2f}×" if key[0] != "echo" else ""
        rows.append(
            (
                one["rows"],
                one["clients"],
                one["server"],
                one["requests_per_s"],
                one["gbytes_per_s"],
                one["p50_us"],
                one["p99_us"],
                f"{loop[key]:.0f}",
                against,
            )
        )
    header = ("rows", "clients", "server", "requests/s", "GB/s", "p50 µs", "p99 µs")
    table = markdown_table((*header, "event loop µs/request", "against echo"), rows)
    growth = about["soak_growth_bytes"] / 1024
    return (
        f"{table}\n\n{about['machine']}, Python {about['python']}, uvicorn "
        f"{about['versions']['uvicorn']}, commit {about['commit']}, {about['date'][:10]}, "
        f"`{about['command']}`, medians of {about['rounds']} alternating rounds; GB/s both ways. "
        f"Counting in the metrics takes {about['metrics_us_per_request']} µs of a request that is "
        f"a batch of its own. Resident memory changed by {growth:+.0f} KiB over "
        f"{about['soak_requests']} requests."
    )


def kernel_bench_table() -> str:
    """What `tilemlp bench kernels` last wrote for every GPU: pictures, times, conditions."""
    paths = sorted(RESULTS.glob("*-kernels.csv"))
    return "\n\n".join(_kernels_of_gpu(path) for path in paths)


def _kernels_of_gpu(path: Path) -> str:
    times = ("eager", "compile", "merged", "GEMM alone", "QuACK", "Kernel-1", "Kernel-2", "fused")
    ratios = ("eager/fused", "fused/GEMM")
    header = ("model", "tokens", *times, *ratios, "chosen", "off by 1 %", "of HBM")
    table = markdown_table(header, (_kernel_cells(row) for row in read_rows(path)))
    pictures = "\n".join(
        f"![{what}](service/bench/results/{path.stem}-{what}.png)"
        for what in ("speedup", "roofline")
    )
    conditions = " ".join(describe_run(run) for run in read_about(path.with_suffix(".json")))
    return (
        f"{pictures}\n\n{table}\n\nMicroseconds a call. Off by 1 %: elements of eager and of fused "
        f"that are more than 1 % away from FP64. {conditions}"
    )


def _kernel_cells(row: KernelRow) -> tuple[str, ...]:
    names = ("eager", "compile", "merged", "gemm", "quack", "kernel1", "kernel2", "fused")
    times = [getattr(row, f"{name}_us") for name in names]
    shares = [
        f"{share * 100:.3f} %"
        for share in (row.mismatch_eager, row.mismatch_fused)
        if share is not None
    ]
    return (
        row.model,
        str(row.tokens),
        *("" if us is None else f"{us:.1f}" for us in times),
        _ratio(row.eager_us, row.fused_us),
        _ratio(row.fused_us, row.gemm_us),
        "" if row.chosen is None else f"`{row.chosen}`",
        ", ".join(shares),
        "" if row.hbm_fraction is None else f"{row.hbm_fraction:.2f}",
    )


def _ratio(above: float | None, below: float | None) -> str:
    return f"{above / below:.3f}" if above and below else ""


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "service bench": service_bench_table,
    "kernels bench": kernel_bench_table,
}


def render(text: str) -> str:
    """The text with every block replaced by what code and results say now."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        content = f"{begin}\n{block()}\n{end}"
        text, count = pattern.subn(lambda _, content=content: content, text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"README: block {name!r} must stand there once, stands {count} times")
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(render(path.read_text()))
