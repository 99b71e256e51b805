"""BentoML: `python -m bentoml serve service.bench.peers.bentoml_app:PeerService`."""

import os

import bentoml
import numpy as np
from _bentoml_sdk.io_models import IODescriptor  # where the documentation's own types come from
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from service.bench.peers.mlp import MAX_BATCH_TOKENS, WORKERS, Mlp, answer_headers
from service.bench.stub import HIDDEN_SIZE


class Rows(IODescriptor):  # type: ignore[misc] # bentoml is no dependency
    """Raw bf16 rows; its own binary types go through files."""

    rows: object

    @classmethod
    async def from_http_request(cls, request: Request, serde: object) -> "Rows":  # noqa: ARG003
        """The body as an array, whose first dimension BentoML batches by."""
        body = np.frombuffer(await request.body(), np.uint16)
        return cls.model_construct(rows=body.reshape(-1, HIDDEN_SIZE))  # type: ignore[no-any-return]

    @classmethod
    async def to_http_response(cls, obj: NDArray[np.uint16], serde: object) -> Response:  # noqa: ARG003
        """The array's bytes."""
        body = obj.tobytes()
        return Response(
            body,
            media_type="application/octet-stream",
            headers=answer_headers(len(body), HIDDEN_SIZE),
        )


@bentoml.service(
    workers=int(os.environ[WORKERS]),
    traffic={"timeout": 120},
    logging={"access": {"enabled": False}},
)
class PeerService:
    """One MLP in each worker."""

    def __init__(self) -> None:
        self.mlp = Mlp()

    @bentoml.api(  # type: ignore[untyped-decorator]
        route="/mlp",
        input_spec=Rows,
        output_spec=Rows,
        batchable=True,
        batch_dim=0,
        max_batch_size=MAX_BATCH_TOKENS,
    )
    def compute(self, rows: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """A batch, already joined."""
        (answer,) = self.mlp.run([np.ascontiguousarray(rows).data.cast("B")])
        return np.frombuffer(answer, np.uint16).reshape(rows.shape)
