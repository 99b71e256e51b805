"""How tensors get to the service and back: in bodies, or through memory that both sides see."""

from __future__ import annotations

from typing import Protocol

from service.load.client import Connection
from service.load.options import Transport
from service.load.payloads import Payload
from service.load.plan import Plan
from service.load.reader import Answer
from service.load.shared import SharedTensors


class TensorTransport(Protocol):
    """Makes the bytes that a connection sends, and finds the tensor of what it receives."""

    def outgoing(self, connection: Connection, payload: Payload) -> bytes:
        """The request to send; the connection has none in flight."""

    def incoming(self, connection: Connection, answer: Answer) -> Answer:
        """A 200 as `/mlp` would have answered it: shape and dtype in headers, tensor in body."""

    def ended(self, connection: Connection) -> None:
        """The request in flight is over, whatever came of it."""

    async def close(self) -> None:
        """Let go of what it holds."""


class InBodies:
    """Nothing to do: payloads are whole requests to `/mlp`."""

    def outgoing(self, connection: Connection, payload: Payload) -> bytes:  # noqa: ARG002
        """The payload's own request."""
        return payload.request

    def incoming(self, connection: Connection, answer: Answer) -> Answer:  # noqa: ARG002
        """The answer as it is."""
        return answer

    def ended(self, connection: Connection) -> None:
        """Nothing was held."""

    async def close(self) -> None:
        """Nothing is."""


async def open_transport(plan: Plan) -> TensorTransport:
    """What the options ask for.

    Raises:
        StartError: the service does not take shared memory.
    """
    if plan.options.transport is Transport.HTTP:
        return InBodies()
    shared = SharedTensors(plan)
    try:
        await shared.register()
    except BaseException:
        shared.release()
        raise
    return shared
