"""`tilemlp bench service`: what the service adds to a bare echo, engine left out.

All servers are measured in alternating rounds of one run, because the figures of a shared machine
drift by more than the difference; medians over rounds are reported.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from service.bench.clients import Round, run_processes, run_round
from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.processes import MeasuredServer
from service.bench.service_results import STUB, ServiceResults
from service.bench.stub import HIDDEN_SIZE
from service.cgroups import cores
from service.engine.gpus import gpu_slug
from service.metrics import Metrics

ROW_BYTES = 2 * HIDDEN_SIZE
# 1 row is the smallest request, 2340 rows are 4 MiB.
CASES = ((1, 1), (1, 16), (64, 16), (2340, 1), (2340, 8))
# With more cores than this, for which so few clients are no load.
_MANY_CORES = 8
CASES_OF_MANY_CORES = ((1, 1), (1, 64), (1, 256), (64, 32), (2340, 1), (2340, 16), (2340, 24))
# Front ends in processes of their own, as far as there are cores for them and for clients.
_WORKERS = (0, 1, 2, 4, 8)
_SOAK_REQUESTS = 50_000


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What to measure, and where it goes.

    Attributes:
        results: Directory of the results files.
        command: What a reader would type.
        rounds: Of each server and case; their medians count.
        round_s: Of one of them, about.
        commit: Where there is no checkout to ask.
    """

    results: Path
    command: str
    rounds: int = 5
    round_s: float = 1.0
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the rounds of one server in one case."""

    server: str
    workers: int
    rows: int
    clients: int
    requests_per_s: float
    p50_us: float
    p99_us: float
    loop_us_per_request: float
    cpu_ms_per_request: float
    main_ms_per_request: float
    user_ms_per_request: float
    system_ms_per_request: float
    clients_ms_per_request: float
    cores_busy: float
    errors: int

    @property
    def processors(self) -> list[object]:
        """Where processors spent their time, for the JSON beside the results file."""
        spent = (
            self.main_ms_per_request,
            self.user_ms_per_request,
            self.system_ms_per_request,
            self.clients_ms_per_request,
        )
        case = (self.server, self.workers, self.rows, self.clients)
        return [*case, *(round(one, 3) for one in spent), round(self.cores_busy, 1)]

    def row(self) -> dict[str, object]:
        """The line of the results file."""
        gbytes = self.requests_per_s * self.rows * ROW_BYTES * 2 / 1e9
        return {
            "server": self.server,
            "workers": self.workers,
            "transport": "http",
            "model": STUB,
            "rows": self.rows,
            "clients": self.clients,
            "requests_per_s": round(self.requests_per_s),
            "gbytes_per_s": round(gbytes, 3),
            "p50_us": round(self.p50_us, 1),
            "p99_us": round(self.p99_us, 1),
            "cpu_ms_per_request": round(self.cpu_ms_per_request, 4),
            "gpu_busy": "",
            "errors": self.errors,
        }


def run_service_bench(options: ServiceOptions, progress: Callable[[str], None]) -> list[str]:
    """Measure all cases, write `<gpu>-service.csv` and `.json`, and return lines to print."""
    servers = [MeasuredServer("sockets", half_the_cores()), MeasuredServer("echo")]
    servers += [MeasuredServer("tilemlp", workers) for workers in worker_counts()]
    try:
        measured = [
            one
            for rows, clients in cases()
            for one in _measure_case(servers, rows, clients, options, progress)
        ]
        progress(f"{_SOAK_REQUESTS} requests for memory growth")
        growth = _soak(next(server for server in servers if server.name == "tilemlp"))
    finally:
        for server in servers:
            server.__exit__()
    metrics_us = _metrics_us_per_request()
    on_gpu = torch.cuda.is_available()
    about = {
        **describe_environment(options.command, commit=options.commit),
        **(describe_gpu() if on_gpu else {}),
        "rounds": options.rounds,
        "round_s": options.round_s,
        "loop_us_per_request": [
            [one.server, one.workers, one.rows, one.clients, round(one.loop_us_per_request, 1)]
            for one in measured
        ],
        "cores": cores(),
        "processors_ms_per_request": [one.processors for one in measured],
        "metrics_us_per_request": round(metrics_us, 2),
        "soak_requests": _SOAK_REQUESTS,
        "soak_growth_bytes": growth,
    }
    slug = gpu_slug(str(about["gpu"])) if on_gpu else "cpu"
    ServiceResults(options.results, slug).replace_added(about, [one.row() for one in measured])
    return _table(measured, metrics_us, growth)


def cases() -> tuple[tuple[int, int], ...]:
    """Rows and clients that are worth a measurement on this machine."""
    return CASES_OF_MANY_CORES if has_many_cores() else CASES


def has_many_cores() -> bool:
    """Whether a few clients are no load for this machine."""
    return half_the_cores() * 2 > _MANY_CORES


def half_the_cores() -> int:
    """Those of servers or of clients."""
    return max(1, cores() // 2)


def _measure_case(
    servers: list[MeasuredServer],
    rows: int,
    clients: int,
    options: ServiceOptions,
    progress: Callable[[str], None],
) -> list[Measured]:
    # Warm-up, and how many requests make a round.
    rates = [_rate(server, rows, clients) for server in servers]
    rounds: list[list[Measured]] = [[] for _ in servers]
    for index in range(options.rounds):
        progress(f"{rows} rows, {clients} clients, round {index + 1} of {options.rounds}")
        for server, rate, found in zip(servers, rates, rounds, strict=True):
            requests = max(clients, int(rate * options.round_s) // clients * clients)
            found.append(_measure(server, rows, clients, requests))
    return [_median(found) for found in rounds]


def worker_counts() -> list[int]:
    """Values of the setting `workers` that are worth a measurement on this machine."""
    return [count for count in _WORKERS if count <= max(2, half_the_cores())]


def _rate(server: MeasuredServer, rows: int, clients: int) -> float:
    requests = clients * 20
    return requests / _ask(server, rows, clients, requests).elapsed_s


def _ask(server: MeasuredServer, rows: int, clients: int, requests: int) -> Round:
    processes = max(n for n in range(1, half_the_cores() + 1) if clients % n == 0)
    return run_processes(server.port, rows * ROW_BYTES, clients, requests, processes)


def _measure(server: MeasuredServer, rows: int, clients: int, requests: int) -> Measured:
    loop_s, cpu_s, before = server.loop_cpu_s(), server.cpu_s(), server.times()
    found = _ask(server, rows, clients, requests)
    loop_s, cpu_s, after = server.loop_cpu_s() - loop_s, server.cpu_s() - cpu_s, server.times()
    done = len(found.latencies_s)
    percentiles = statistics.quantiles(found.latencies_s, n=100)
    return Measured(
        server=server.name,
        workers=server.workers,
        rows=rows,
        clients=clients,
        requests_per_s=done / found.elapsed_s,
        p50_us=percentiles[49] * 1e6,
        p99_us=percentiles[98] * 1e6,
        loop_us_per_request=loop_s / done * 1e6,
        cpu_ms_per_request=cpu_s / done * 1e3,
        main_ms_per_request=(after.main_s - before.main_s) / done * 1e3,
        user_ms_per_request=(after.user_s - before.user_s) / done * 1e3,
        system_ms_per_request=(after.system_s - before.system_s) / done * 1e3,
        clients_ms_per_request=found.cpu_s / done * 1e3,
        cores_busy=(cpu_s + found.cpu_s) / found.elapsed_s,
        errors=found.errors,
    )


def _median(rounds: list[Measured]) -> Measured:
    """Server and case are the same in all; errors are counted, the rest is measured."""
    middle: dict[str, Any] = {
        field.name: statistics.median(getattr(one, field.name) for one in rounds)
        for field in fields(Measured)
        if field.type == "float"
    }
    return replace(rounds[0], **middle, errors=sum(one.errors for one in rounds))


def _soak(server: MeasuredServer) -> int:
    """Growth of resident memory over many requests, after as many again to settle."""
    body = os.urandom(ROW_BYTES)
    run_round(server.port, body, 16, _SOAK_REQUESTS // 5)
    before = server.resident_bytes()
    run_round(server.port, body, 16, _SOAK_REQUESTS)
    return server.resident_bytes() - before


def _metrics_us_per_request() -> float:
    """Cost of counting one request that is a batch of its own: the dearest case."""
    metrics = Metrics(outcomes=("ok",), kernels=("stub",), build={}, peak_flops=None)
    stages = {"h2d": 1e-5, "compute": 1e-4, "d2h": 1e-5}
    repeats = 20_000
    began = time.perf_counter()
    for _ in range(repeats):
        for stage in ("receive", "decode", "queue", "encode"):
            metrics.stage(stage, 1e-5)
        metrics.batch_started("idle", 1, 1)
        metrics.batch_succeeded(
            tokens=1, flops=1, busy_s=1e-4, kernels=(("stub", 1e-4),), stages=stages
        )
        metrics.request_ended("mlp", "ok", 1e-3)
    return (time.perf_counter() - began) / repeats * 1e6


def _table(measured: list[Measured], metrics_us: float, growth: int) -> list[str]:
    lines = [
        "rows  clients  server   workers  requests/s      GB/s   p50 µs   p99 µs  CPU ms/request"
        "  loop µs/request  against echo"
    ]
    for one in measured:
        gbytes = one.row()["gbytes_per_s"]
        against = ""
        if one.server == "echo":
            echo = one
        elif one.server == "tilemlp":
            added = one.loop_us_per_request - echo.loop_us_per_request
            ratio = one.loop_us_per_request / echo.loop_us_per_request
            against = f"{added:+.0f} µs, {ratio:.2f}x"
        lines.append(
            f"{one.rows:4d}  {one.clients:7d}  {one.server:7s}  {one.workers:7d}"
            f"  {one.requests_per_s:10.0f}  {gbytes:8}  {one.p50_us:7.0f}  {one.p99_us:7.0f}"
            f"  {one.cpu_ms_per_request:14.3f}  {one.loop_us_per_request:15.0f}  {against}"
        )
    lines.append(f"metrics: {metrics_us:.1f} µs per request that is a batch of its own")
    lines.append(f"memory: {growth / 1024:+.0f} KiB over {_SOAK_REQUESTS} requests")
    return lines
