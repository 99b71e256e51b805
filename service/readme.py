"""The blocks of README.md that come from code and results files: `python -m service.readme`.

A block stands between `<!-- name -->` and `<!-- /name -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.bench.decode_table import decode_bench_table
from service.bench.engine_table import (
    budget_table,
    engine_bench_table,
    more_gpus_table,
    soak_sentences,
)
from service.bench.kernel_table import kernel_bench_table
from service.bench.markdown import markdown_table
from service.bench.peers.table import peer_tables
from service.bench.service_results import ServiceResults
from service.bench.stub import StubEngine
from service.config import Settings
from service.metrics import GPU_GAUGES
from service.runtime import Runtime

RESULTS = Path(__file__).parent / "bench" / "results"
CONTAINER_RESULTS = Path(__file__).parents[1] / "deploy" / "container" / "results.json"


def settings_table() -> str:
    """Every setting with variable, default and meaning; flags are named alike."""
    rows = []
    for name, info in Settings.model_fields.items():
        default = "" if info.default is None else f"`{info.default}`"
        if info.default_factory is not None:
            default = "from the cores"
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
    """What `tilemlp bench service` last wrote on each machine, with where and how."""
    machines = [ServiceResults.of(path) for path in sorted(RESULTS.glob("*-service.csv"))]
    return "\n\n".join(
        _service_bench_table(about, rows)
        for about, rows in map(ServiceResults.added, machines)
        if rows
    )


def _service_bench_table(about: dict[str, Any], found: list[dict[str, str]]) -> str:
    loop = {tuple(entry[:4]): entry[4] for entry in about["loop_us_per_request"]}
    rows = []
    for one in found:
        case = (int(one["rows"]), int(one["clients"]))
        key = (one["server"], int(one["workers"]), *case)
        echo = loop["echo", 0, case[0], case[1]]
        is_ours = one["server"] == "tilemlp"
        against = f"{loop[key] - echo:+.0f} µs, {loop[key] / echo:.2f}×" if is_ours else ""
        rows.append(
            (
                one["rows"],
                one["clients"],
                one["server"],
                one["workers"],
                one["requests_per_s"],
                one["gbytes_per_s"],
                one["p50_us"],
                one["p99_us"],
                one["cpu_ms_per_request"],
                f"{loop[key]:.0f}",
                against,
            )
        )
    header = ("rows", "clients", "server", "workers", "requests/s", "GB/s", "p50 µs", "p99 µs")
    costs = ("CPU ms/request", "event loop µs/request", "against echo")
    table = markdown_table((*header, *costs), rows)
    growth = about["soak_growth_bytes"] / 1024
    return (
        f"{table}\n\n{about['machine']}, Python {about['python']}, uvicorn "
        f"{about['versions']['uvicorn']}, commit {about['commit']}, {about['date'][:10]}, "
        f"`{about['command']}`, medians of {about['rounds']} alternating rounds; GB/s both ways; "
        "with workers, the event loop is the engine's and CPU that of all processes. "
        f"Counting in the metrics takes {about['metrics_us_per_request']} µs of a request that is "
        f"a batch of its own. Resident memory changed by {growth:+.0f} KiB over "
        f"{about['soak_requests']} requests."
        f"{_processors_table(about)}"
    )


def _processors_table(about: dict[str, Any]) -> str:
    """Where a large request's processor time goes, in the case with most rows and clients."""
    every = about.get("processors_ms_per_request")
    if every is None:
        return ""
    case = max(tuple(one[2:4]) for one in every)
    rows = [
        (server, str(workers), *(f"{ms:.2f}" for ms in spent), f"{busy:.1f}")
        for server, workers, *of_case, main, user, system, clients, busy in every
        if tuple(of_case) == case
        for spent in [(main, user, system, clients)]
    ]
    header = ("server", "workers", "main process", "others", "others, kernel", "clients", "cores")
    return (
        f"\n\nProcessor time of a request of {case[0]} rows from {case[1]} clients, in ms: of the "
        "server's main process (the engine's, with workers), of its other processes in their own "
        "code and in the kernel, and of the clients; and how many of "
        f"{about['cores']} cores that kept busy:\n\n{markdown_table(header, rows)}"
    )


def container_sentence() -> str:
    """What the container test last recorded of the CPU image, with where and how."""
    about = json.loads(CONTAINER_RESULTS.read_text())
    cpu = about["cpu"]
    image, base = (f"{cpu[name] / 1e6:.0f} MB" for name in ("image_bytes", "base_bytes"))
    return (
        f"The CPU image takes {image}, of which the base, Debian bookworm with Python in place of "
        f"`python:3.11-slim-bookworm`, {base}; {cpu['build_s']} s to build without a cache "
        f"({about['machine']}, load {about['load']}, commit {about['commit']}, "
        f"{about['date'][:10]}, `{about['command']}`)."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "service bench": service_bench_table,
    "peers bench": lambda: peer_tables(RESULTS),
    "engine bench": lambda: engine_bench_table(RESULTS),
    "more gpus": lambda: more_gpus_table(RESULTS),
    "time budget": lambda: budget_table(RESULTS),
    "soak": lambda: soak_sentences(RESULTS),
    "kernels bench": lambda: kernel_bench_table(RESULTS),
    "decode bench": lambda: decode_bench_table(RESULTS),
    "containers": container_sentence,
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
