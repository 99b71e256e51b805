"""Ray Serve: `python -m service.bench.peers.ray_app PORT`."""

import os
import signal
import sys

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from service.bench.peers.mlp import WORKERS, Mlp, answer_headers

MAX_BATCH_REQUESTS = 64
BATCH_WINDOW_S = 0.002
# Requests that one replica takes at once; its default of 5 would bound the batches as well.
ONGOING_REQUESTS = 256


class MlpReplica:
    """One MLP."""

    def __init__(self) -> None:
        self.mlp = Mlp()

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=MAX_BATCH_REQUESTS, batch_wait_timeout_s=BATCH_WINDOW_S
    )
    async def compute(self, bodies: list[bytes]) -> list[bytes]:
        """A batch."""
        return [bytes(answer) for answer in self.mlp.run(bodies)]

    async def __call__(self, request: Request) -> Response:
        """Raw rows in, raw rows out."""
        body = await self.compute(await request.body())
        return Response(
            body,
            media_type="application/octet-stream",
            headers=answer_headers(len(body), self.mlp.hidden_size),
        )


if __name__ == "__main__":
    cores = os.cpu_count() or 1
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2 * cores)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    replicas = int(os.environ[WORKERS])
    # A replica gets as many threads of OpenMP as it reserves cores, by default one.
    deployment = serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": max(1, cores // replicas)},
    )(MlpReplica)
    serve.run(deployment.bind(), route_prefix="/mlp")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
