"""LitServe: `python -m service.bench.peers.litserve_app PORT`."""

import os
import sys
from typing import Annotated

import litserve
from fastapi import Depends, Request, Response

from service.bench.peers.mlp import WORKERS, Mlp, answer_headers

# 64 requests of 64 rows are half of what our own service batches at most; the window is the
# documentation's example.
MAX_BATCH_REQUESTS = 64
BATCH_WINDOW_S = 0.002


async def read_body(request: Request) -> bytes:
    """The body as it is, rather than parsed as JSON."""
    return await request.body()


class MlpApi(litserve.LitAPI):  # type: ignore[misc] # litserve is no dependency
    """One MLP; annotations are read at run time, so they are no strings here."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        """In the worker process."""
        self.mlp = Mlp()

    def decode_request(self, request: Annotated[bytes, Depends(read_body)]) -> bytes:
        """Rows as they came."""
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Rows stay apart, the engine joins them."""
        return inputs

    def predict(self, x: list[bytes]) -> list[bytearray]:
        """A batch."""
        return self.mlp.run(x)

    def unbatch(self, output: list[bytearray]) -> list[bytearray]:
        """They are apart."""
        return output

    def encode_response(self, output: bytearray) -> Response:
        """Rows as they are."""
        return Response(
            bytes(output),
            media_type="application/octet-stream",
            headers=answer_headers(len(output), self.mlp.hidden_size),
        )


if __name__ == "__main__":
    api = MlpApi(max_batch_size=MAX_BATCH_REQUESTS, batch_timeout=BATCH_WINDOW_S, api_path="/mlp")
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, timeout=120, fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=int(os.environ[WORKERS]),
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
