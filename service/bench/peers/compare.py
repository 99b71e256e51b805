"""`tilemlp bench service --peers`: the same MLP, model, client and machine behind other servers.

Each server runs alone, in processes of its own, and is asked by the load generator in a closed
loop, which checks every answer; medians over rounds are reported.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.peers.measure import Measured, measure_server
from service.bench.peers.mlp import ECHO
from service.bench.peers.options import PeerOptions
from service.bench.peers.servers import PeerServer, servers
from service.bench.peers.table import describe
from service.bench.service_results import ServiceResults
from service.engine.gpus import gpu_slug
from service.errors import ConfigError, StartError

logger = logging.getLogger(__name__)

_MOST_ROWS_ON_CPU = 64


def compare(
    options: PeerOptions,
    progress: Callable[[str], None],
    keep: Callable[[Sequence[Measured], Sequence[str]], None] | None = None,
) -> tuple[list[Measured], list[str]]:
    """Measure every server that is installed, as long as the budget lasts.

    Args:
        options: What to measure.
        progress: Told what is being done.
        keep: Gets, behind every server, what is to be returned as far as it is known.

    Returns:
        Servers and cases measured, and a sentence about each server that is left out.
    """
    measured: list[Measured] = []
    left_out: list[str] = []
    ends = time.monotonic() + options.budget_s
    for model in options.models:
        cases, unmeasured = _cases(options, model)
        left_out += unmeasured
        for server in servers(model, options.workers):
            if options.only and server.short_name not in options.only:
                continue
            if refusal := _refusal(server, model, ends, options):
                left_out.append(refusal)
                continue
            try:
                # One by one, so that what was measured before a server failed is kept.
                for one in measure_server(server, model, cases, options, progress):
                    measured.append(one)  # noqa: PERF402
            except StartError as error:
                logger.warning("%s", error)
                sentence, _, _ = str(error).partition(":\n")  # the rest is its log
                left_out.append(f"{model}: {server.label}: {sentence}")
            if keep is not None:
                keep(measured, list(dict.fromkeys(left_out)))
    return measured, list(dict.fromkeys(left_out))


def _refusal(server: PeerServer, model: str, ends: float, options: PeerOptions) -> str:
    """Why a server is not started; empty where it is."""
    if not server.is_installed:
        return (
            f"{server.name}: must be installed to be compared, is not; "
            "pip install 'tilemlp[bench-peers]'"
        )
    if time.monotonic() > ends:
        return f"{model}: {server.label}: must begin within {options.budget_s:g} s, would not have"
    return ""


def _cases(options: PeerOptions, model: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Those that this machine can measure for a model, and a sentence where that is not all."""
    every = list(options.cases.of(model))
    if model == ECHO or torch.cuda.is_available():
        return every, []
    short = [(rows, clients) for rows, clients in every if rows <= _MOST_ROWS_ON_CPU]
    if len(short) == len(every):
        return short, []
    return short, [
        f"{model}: rows must be at most {_MOST_ROWS_ON_CPU} without a GPU, where one request of "
        "more takes seconds, so larger cases are not measured"
    ]


def run_peer_bench(
    options: PeerOptions, results: Path, command: str, progress: Callable[[str], None]
) -> list[str]:
    """Measure, write `<gpu>-service.csv` and its JSON behind every server, and draw them.

    Returns:
        Lines to print.

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

    found = ServiceResults(results, gpu)
    before: tuple[dict[str, Any], list[dict[str, str]]] = found.peers() if options.add else ({}, [])

    def keep(measured: Sequence[Measured], left_out: Sequence[str]) -> None:
        if not measured:
            return
        packages = sorted({name for one in measured for name in one.server.distributions})
        busiest = max(measured, key=lambda one: one.found.clients_busy)
        about = {
            **describe_environment(command, packages, options.commit),
            **device,
            "rounds": options.rounds,
            "duration_s": options.duration_s,
            "warm_up_s": options.warm_up_s,
            "load_average": load_average,
            "clients_busy": round(busiest.found.clients_busy, 3),
            "clients_busy_with": f"{busiest.server.label}, {busiest.rows} × {busiest.clients}",
            "left_out": left_out,
        }
        found.add_peers(before, about, [one.row() for one in measured])

    # As it goes: it takes minutes, and whoever ends it early has paid for what is there.
    measured, left_out = compare(options, progress, keep)
    if not measured:
        raise ConfigError(f"peers: one server must be measured, none was: {'; '.join(left_out)}")
    # Also of those that were refused behind the last that was measured.
    keep(measured, left_out)
    rows = [one.row() for one in measured]
    return [*describe(rows), *left_out, str(plot_peers(results, gpu))]
