"""One compared server under the load generator: started, measured in every case, ended."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from service.bench.peers.mlp import ECHO
from service.bench.peers.options import PeerOptions
from service.bench.peers.process import PeerProcess
from service.bench.peers.servers import PeerServer
from service.bench.service import half_the_cores
from service.bench.stub import HIDDEN_SIZE, StubEngine
from service.engine.base import DType, Output
from service.engine.presets import PRESETS
from service.load.answers import Expected, make_expected
from service.load.ask import ask
from service.load.options import LoadOptions
from service.load.payloads import Payload, make_payloads
from service.load.plan import Load, make_plans
from service.load.processes import run_plans
from service.load.runner import run_async

_DTYPE = DType.BF16
_TIMEOUT_S = 120.0
# A server that answers all clients at once, and seldom, is caught between two of its batches by a
# window as short as others need. So one with fewer answers than these for each client is longer.
_ANSWERS_PER_CLIENT = 3
_LONGER = 4


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement; or the medians of several, with their errors in all.

    Attributes:
        clients_busy: Of the client process that worked most: CPU seconds a second.
    """

    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_ms_per_request: float
    gpu_busy: float | None
    clients_busy: float
    errors: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One server in one case."""

    server: PeerServer
    model: str
    rows: int
    clients: int
    body_bytes: int
    found: Round

    def row(self) -> dict[str, object]:
        """The line of the results file."""
        found = self.found
        return {
            "server": self.server.name,
            "workers": self.server.workers,
            "transport": self.server.transport.value,
            "model": self.model,
            "rows": self.rows,
            "clients": self.clients,
            "requests_per_s": round(found.requests_per_s, 1),
            "gbytes_per_s": round(found.requests_per_s * self.body_bytes * 2 / 1e9, 4),
            "p50_us": round(found.p50_us, 1),
            "p99_us": round(found.p99_us, 1),
            "cpu_ms_per_request": round(found.cpu_ms_per_request, 4),
            "gpu_busy": "" if found.gpu_busy is None else round(found.gpu_busy, 3),
            "errors": found.errors,
        }


def measure_server(
    server: PeerServer,
    model: str,
    cases: Sequence[tuple[int, int]],
    options: PeerOptions,
    progress: Callable[[str], None],
) -> Iterator[Measured]:
    """Start a server, ask it in every case, and end it.

    Raises:
        StartError: it did not start, or ended, or its answer to a lone request is wrong.
    """
    hidden_size = HIDDEN_SIZE if model == ECHO else PRESETS[model].hidden_size
    name = StubEngine.model.name if model == ECHO else model
    what = f"{server.label}, {model}"
    progress(f"{what}: starting")
    process = PeerProcess(server, model)
    try:
        process.wait_ready(hidden_size * _DTYPE.itemsize, options.start_timeout_s)
        for rows, clients in cases:
            load = _load_options(server, process, rows, clients, options)
            payloads = make_payloads(load, name, hidden_size)
            expected = [run_async(_expect(load, payload, hidden_size)) for payload in payloads]
            progress(f"{what}: {rows} rows, {clients} clients")
            rounds = [_measure(process, load, payloads, expected)]
            if rounds[0].requests_per_s * load.duration_s < _ANSWERS_PER_CLIENT * clients:
                load = replace(load, duration_s=_LONGER * load.duration_s)
                rounds = [_measure(process, load, payloads, expected)]
            while len(rounds) < options.rounds:
                rounds.append(_measure(process, load, payloads, expected))
            body_bytes = payloads[0].body_bytes
            yield Measured(server, model, rows, clients, body_bytes, _median(rounds))
    finally:
        process.stop()


def _load_options(
    server: PeerServer, process: PeerProcess, rows: int, clients: int, options: PeerOptions
) -> LoadOptions:
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
        processes=min(clients, half_the_cores()),
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
        clients_busy=max(tally.cpu_shares),
        errors=tally.errors,
    )


def _median(rounds: Sequence[Round]) -> Round:
    def middle(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in rounds))

    return Round(
        requests_per_s=middle("requests_per_s"),
        p50_us=middle("p50_us"),
        p99_us=middle("p99_us"),
        cpu_ms_per_request=middle("cpu_ms_per_request"),
        gpu_busy=None if rounds[0].gpu_busy is None else middle("gpu_busy"),
        clients_busy=middle("clients_busy"),
        errors=sum(one.errors for one in rounds),
    )
