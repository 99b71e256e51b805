"""`tilemlp bench service --peers`: the same MLP, model, client and machine behind other servers.

Each server runs alone, in processes of its own, and is asked by the load generator in a closed
loop, which checks every answer; medians over rounds are reported.
"""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.peers.mlp import ECHO
from service.bench.peers.options import PeerOptions
from service.bench.peers.process import PeerProcess
from service.bench.peers.servers import PeerServer, servers
from service.bench.peers.table import describe
from service.bench.service_results import ServiceResults
from service.bench.stub import HIDDEN_SIZE, StubEngine
from service.engine.base import DType, Output
from service.engine.gpus import gpu_slug
from service.engine.presets import PRESETS
from service.errors import ConfigError, StartError
from service.load.answers import Expected, make_expected
from service.load.ask import ask
from service.load.options import LoadOptions
from service.load.payloads import Payload, make_payloads
from service.load.plan import Load, make_plans
from service.load.processes import run_plans
from service.load.runner import run_async

logger = logging.getLogger(__name__)

_DTYPE = DType.BF16
_TIMEOUT_S = 120.0
_MOST_ROWS_ON_CPU = 64
# A client process moves a few GB/s; more of them than this would take the server's cores.
_CORES_PER_CLIENT_PROCESS = 4


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement."""

    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_ms_per_request: float
    gpu_busy: float | None
    errors: int


def compare(
    options: PeerOptions, progress: Callable[[str], None]
) -> tuple[list[dict[str, object]], list[str]]:
    """Measure every server that is installed.

    Returns:
        Lines of the results file, and a sentence about each server that is left out.
    """
    rows: list[dict[str, object]] = []
    left_out: list[str] = []
    for model in options.models:
        cases, unmeasured = _cases(options, model)
        left_out += unmeasured
        for server in servers(model):
            if not server.is_installed:
                left_out.append(
                    f"{server.name}: must be installed to be compared, is not; "
                    "pip install 'tilemlp[bench-peers]'"
                )
                continue
            try:
                rows.extend(_measure_server(server, model, cases, options, progress))
            except StartError as error:
                logger.warning("%s", error)
                sentence, _, _ = str(error).partition(":\n")  # the rest is its log
                left_out.append(f"{model}: {sentence}")
    return rows, list(dict.fromkeys(left_out))


def _cases(options: PeerOptions, model: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Those that this machine can measure for a model, and a sentence where that is not all."""
    if model == ECHO or torch.cuda.is_available():
        return list(options.cases), []
    short = [(rows, clients) for rows, clients in options.cases if rows <= _MOST_ROWS_ON_CPU]
    if len(short) == len(options.cases):
        return short, []
    return short, [
        f"{model}: rows must be at most {_MOST_ROWS_ON_CPU} without a GPU, where one request of "
        "more takes seconds, so larger cases are not measured"
    ]


def _measure_server(
    server: PeerServer,
    model: str,
    cases: Sequence[tuple[int, int]],
    options: PeerOptions,
    progress: Callable[[str], None],
) -> Iterator[dict[str, object]]:
    hidden_size = HIDDEN_SIZE if model == ECHO else PRESETS[model].hidden_size
    what = f"{server.name} ({server.transport.value}), {model}"
    progress(f"{what}: starting")
    process = PeerProcess(server, model)
    try:
        process.wait_ready(hidden_size * _DTYPE.itemsize)
        for rows, clients in cases:
            load = _load_options(server, process, rows, clients, options)
            name = StubEngine.model.name if model == ECHO else model
            payloads = make_payloads(load, name, hidden_size)
            expected = [run_async(_expect(load, payload, hidden_size)) for payload in payloads]
            found = []
            for index in range(options.rounds):
                progress(f"{what}: {rows} rows, {clients} clients, round {index + 1}")
                found.append(_measure(process, load, payloads, expected))
            yield _row(server, model, load, found, rows * hidden_size * _DTYPE.itemsize)
    finally:
        process.stop()


def _load_options(
    server: PeerServer, process: PeerProcess, rows: int, clients: int, options: PeerOptions
) -> LoadOptions:
    most = max(1, (os.cpu_count() or 1) // _CORES_PER_CLIENT_PROCESS)
    return LoadOptions(
        url=f"http://127.0.0.1:{process.port}",
        output=Output.MLP,
        dtype=_DTYPE,
        transport=server.transport,
        rows=((rows, 1.0),),
        connections=clients,
        duration_s=options.duration_s,
        warm_up_s=options.warm_up_s,
        timeout_s=_TIMEOUT_S,
        processes=min(clients, most),
        quiet=True,
    )


async def _expect(load: LoadOptions, payload: Payload, width: int) -> Expected:
    """The answer to a lone request: what it has to be under load."""
    answer = await ask(load.address, payload.request, load.timeout_s)
    return make_expected(payload, width, _DTYPE, answer)


def _measure(
    process: PeerProcess,
    load: LoadOptions,
    payloads: Sequence[Payload],
    expected: Sequence[Expected],
) -> Round:
    cpu_s, busy_s = process.cpu_s(), process.gpu_busy_s()
    tally = run_plans(make_plans(load, Load(load.connections, None), payloads, expected))
    cpu_s, busy_after_s = process.cpu_s() - cpu_s, process.gpu_busy_s()
    gpu_busy = None
    if busy_s is not None and busy_after_s is not None and torch.cuda.is_available():
        gpu_busy = (busy_after_s - busy_s) / (load.warm_up_s + load.duration_s)
    latency = tally.latency()
    return Round(
        requests_per_s=tally.requests / load.duration_s,
        p50_us=(latency.quantile(0.5) or 0.0) / 1e3,
        p99_us=(latency.quantile(0.99) or 0.0) / 1e3,
        cpu_ms_per_request=cpu_s / max(1, tally.sent) * 1e3,
        gpu_busy=gpu_busy,
        errors=tally.errors,
    )


def _row(
    server: PeerServer, model: str, load: LoadOptions, rounds: Sequence[Round], body_bytes: int
) -> dict[str, Any]:
    def middle(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in rounds))

    ((rows, _),) = load.rows
    requests_per_s = middle("requests_per_s")
    return {
        "server": server.name,
        "workers": 1,
        "transport": server.transport.value,
        "model": model,
        "rows": rows,
        "clients": load.connections,
        "requests_per_s": round(requests_per_s, 1),
        "gbytes_per_s": round(requests_per_s * body_bytes * 2 / 1e9, 4),
        "p50_us": round(middle("p50_us"), 1),
        "p99_us": round(middle("p99_us"), 1),
        "cpu_ms_per_request": round(middle("cpu_ms_per_request"), 4),
        "gpu_busy": "" if rounds[0].gpu_busy is None else round(middle("gpu_busy"), 3),
        "errors": sum(one.errors for one in rounds),
    }


def run_peer_bench(
    options: PeerOptions, results: Path, command: str, progress: Callable[[str], None]
) -> list[str]:
    """Measure, write `<gpu>-service.csv` with its JSON and picture, and return lines to print.

    Raises:
        ConfigError: there is no matplotlib, or no server could be measured.
    """
    # What could not be drawn in the end is said before the measurement.
    from service.bench.peers.plot import plot_peers  # noqa: PLC0415

    gpu = "cpu"
    device: dict[str, object] = {}
    if torch.cuda.is_available():
        device = describe_gpu()
        gpu = gpu_slug(str(device["gpu"]))
    load_average = os.getloadavg()[0]
    rows, left_out = compare(options, progress)
    if not rows:
        raise ConfigError(f"peers: one server must be measured, none was: {'; '.join(left_out)}")
    packages = sorted(
        {
            name
            for model in options.models
            for server in servers(model)
            for name in server.distributions
        }
    )
    about = {
        **describe_environment(command, packages),
        **device,
        "rounds": options.rounds,
        "duration_s": options.duration_s,
        "warm_up_s": options.warm_up_s,
        "load_average": load_average,
        "left_out": left_out,
    }
    ServiceResults(results, gpu).replace_peers(about, rows)
    return [*describe(rows), *left_out, str(plot_peers(results, gpu))]
