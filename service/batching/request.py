"""A request on its way through the batcher, and what comes back for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from service.batching.admission import Lease
from service.engine.base import DType, Output

GroupKey: TypeAlias = tuple[int, Output]


class State(Enum):
    """Where a request is; it only moves forward."""

    QUEUED = auto()
    RUNNING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine computed for one request.

    Attributes:
        data: [tokens, width] in the request's output dtype, in memory that is nobody else's for as
            long as anything refers to it.
        kernel: The gate/up kernel that ran; `none` where there was nothing to compute.
        batch_tokens: Rows of the batch that this request was part of.
        queue_s: From joining the queue to the start of the batch.
        execute_s: From the start of the batch to its end.
    """

    data: memoryview
    kernel: str
    batch_tokens: int
    queue_s: float
    execute_s: float


class PendingRequest:
    """One validated request. The batcher owns it, and its lease, from `submit` on.

    Args:
        layer: Layer index in the checkpoint's numbering.
        output: What to compute.
        tokens: Rows.
        data: [tokens, hidden_size] of `dtype`; may lie in the lease's slot.
        dtype: Element type of `data`.
        output_dtype: Element type of the answer.
        output_nbytes: Size of the answer.
        lease: Budget and slot that are returned when the request is over.
        deadline: Time of the batcher's clock after which it must not start; None for never.
    """

    __slots__ = (
        "arrival",
        "data",
        "deadline",
        "dtype",
        "future",
        "key",
        "lease",
        "output_dtype",
        "output_nbytes",
        "started",
        "state",
        "timer",
        "tokens",
    )

    def __init__(
        self,
        *,
        layer: int,
        output: Output,
        tokens: int,
        data: memoryview,
        dtype: DType,
        output_dtype: DType,
        output_nbytes: int,
        lease: Lease,
        deadline: float | None = None,
    ) -> None:
        self.key: GroupKey = (layer, output)
        self.tokens = tokens
        self.data = data
        self.dtype = dtype
        self.output_dtype = output_dtype
        self.output_nbytes = output_nbytes
        self.lease = lease
        self.deadline = deadline
        self.arrival = 0.0
        self.started = 0.0
        self.state = State.QUEUED
        self.timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Answer]
