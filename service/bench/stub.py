"""Servers to measure: the service around an engine that costs nothing, and what it is held against.

`python -m service.bench.stub tilemlp`, `… echo` and `… sockets` listen on a free port, or on one
that is named behind that, and print it as the server's log does. All answer a body with the same
body.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import uvicorn

from service.bench.floor import serve_floor
from service.config import load_settings
from service.engine.base import Batch, BatchReport, DType, Launched, ModelSpec, Output, host_rows
from service.engine.buckets import GRAPH_BYTES
from service.log import configure_logging
from service.server import serve

HIDDEN_SIZE = 896
_REPORT = BatchReport("stub", (("stub", 0.0),), {"h2d": 0.0, "compute": 0.0, "d2h": 0.0})


class StubEngine:
    """Answers every request with its own rows, so that only the service is measured.

    Takes as many batches at a time as the GPU engine, and small ones in the same way; the others
    are copied by threads of Python's, where that would mostly use the library's.
    """

    backend = "stub"
    device = "none"
    concurrency = 4
    kernels = ("stub",)
    peak_flops: float | None = None
    model = ModelSpec("stub", HIDDEN_SIZE, HIDDEN_SIZE, (0,), "silu", DType.BF16)

    def warm_up(self, max_batch_tokens: int) -> None:
        """Nothing to warm."""

    def run(self, batch: Batch) -> BatchReport:
        """Copy, without the interpreter's lock, which copies by a GPU do not hold either."""
        for segment in batch.segments:
            np.copyto(np.asarray(host_rows(segment.output)), np.asarray(host_rows(segment.input)))
        return _REPORT

    def expected_s(self, output: Output, tokens: int) -> float | None:
        """Nothing, for batches for which the GPU engine has a graph."""
        nbytes = tokens * self.model.width(output) * self.model.dtype.itemsize
        return 0.0 if nbytes <= GRAPH_BYTES else None

    def launch(self, batch: Batch) -> Launched:
        """Over at once."""
        return Launched("stub", lambda _: True, lambda: self._copy(batch), lambda: _REPORT)

    def _copy(self, batch: Batch) -> None:
        for segment in batch.segments:
            host_rows(segment.output)[:] = host_rows(segment.input)

    def self_test(self) -> None:
        """Nothing to test."""

    def close(self) -> None:
        """Nothing to close."""


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401
    """The least that any Python server does: read the body, send it back."""
    if scope["type"] != "http":
        return
    chunks = []
    more = True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    rows = len(body) // (2 * HIDDEN_SIZE)
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"x-tensor-shape", b"%d,%d" % (rows, HIDDEN_SIZE)),
        (b"x-tensor-dtype", b"bf16"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(server: str, port: int = 0) -> int:
    """Run one of them until SIGTERM; port 0 picks a free one."""
    configure_logging("info")
    if server == "tilemlp":
        return serve(load_settings(port=port, drain_delay_s=0.0), StubEngine())
    if server == "sockets":
        serve_floor(port, load_settings().workers)
    uvicorn.run(
        echo,
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
