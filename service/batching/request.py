"""A request on its way through the batcher, and what comes back for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from service.engine.base import DType, Output, Rows

GroupKey: TypeAlias = tuple[int, Output]


class State(Enum):
    """Where a request is; it only moves forward."""

    QUEUED = auto()
    RUNNING = auto()
    DONE = auto()


class BodyRoom(Protocol):
    """Memory that a body is received into.

    Attributes:
        view: Writable, exactly as long as was asked for.
    """

    view: memoryview


class Holding(Protocol):
    """What a request holds from its admission on: budget and a slot."""

    @property
    def slot(self) -> BodyRoom:
        """Where its body is received."""

    def settle(self, tokens: int, nbytes: int) -> None:
        """Correct the estimates once the body is decoded; never up."""

    def start(self) -> None:
        """Return the budget: the request waits no longer."""

    def release(self) -> None:
        """Return budget and slot: nobody reads the body any more."""


class Answer(NamedTuple):
    """What the engine computed for one request.

    Attributes:
        data: [tokens, width] in the request's output dtype, in memory that is nobody else's for as
            long as anything refers to it, or until `release`; or where the request wanted it, and
            empty where that is on the device.
        kernel: The gate/up kernel that ran; `none` where there was nothing to compute.
        batch_tokens: Rows of the batch that this request was part of.
        queue_s: From joining the queue to the start of the batch.
        execute_s: From the start of the batch to its end.
        release: To be called once when nobody, not even a transport, reads `data` any more, where
            it lies in a slot; None where the answer owns its memory.
    """

    data: memoryview
    kernel: str
    batch_tokens: int
    queue_s: float
    execute_s: float
    release: Callable[[], None] | None = None


class PendingRequest:
    """One validated request. The batcher owns it, and its lease, from `submit` on.

    Args:
        layer: Layer index in the checkpoint's numbering.
        output: What to compute.
        tokens: Rows.
        data: [tokens, hidden_size] of `dtype`; may lie in the lease's slot, or on the device.
        dtype: Element type of `data`.
        output_dtype: Element type of the answer.
        output_nbytes: Size of the answer.
        lease: Budget and slot that are returned when the request is over.
        deadline: Time of the batcher's clock after which it must not start; None for never.
        output_data: Writable, output_nbytes long: where the answer goes; None for new memory.
        requests: Of how many clients the rows are, one behind the other.
        waited_s: What these have waited before they came to the queue, seconds of all together.
    """

    __slots__ = (
        "arrival",
        "data",
        "deadline",
        "dtype",
        "future",
        "key",
        "lease",
        "output_data",
        "output_dtype",
        "output_nbytes",
        "requests",
        "started",
        "state",
        "timer",
        "tokens",
        "waited_s",
    )

    def __init__(
        self,
        *,
        layer: int,
        output: Output,
        tokens: int,
        data: Rows,
        dtype: DType,
        output_dtype: DType,
        output_nbytes: int,
        lease: Holding,
        deadline: float | None = None,
        output_data: Rows | None = None,
        requests: int = 1,
        waited_s: float = 0.0,
    ) -> None:
        self.key: GroupKey = (layer, output)
        self.tokens = tokens
        self.data = data
        self.dtype = dtype
        self.output_dtype = output_dtype
        self.output_nbytes = output_nbytes
        self.output_data = output_data
        self.requests = requests
        self.waited_s = waited_s
        self.lease = lease
        self.deadline = deadline
        self.arrival = 0.0
        self.started = 0.0
        self.state = State.QUEUED
        self.timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Answer]
