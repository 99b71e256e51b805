"""A batcher in virtual time, with an engine that ends each batch when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.batching.admission import Admission
from service.batching.arena import Arena
from service.batching.batcher import Batcher, Done, Outcome
from service.batching.policy import Limits
from service.batching.request import Answer, PendingRequest
from service.engine.base import BatchReport, DType, Output
from service.errors import outcomes
from service.metrics import Metrics
from tests.engines import spec

HIDDEN = 2
REPORT = BatchReport("fake", (("fake", 1e-4),), {"h2d": 1e-5, "compute": 1e-4, "d2h": 1e-5}, 1e-4)


@dataclass(eq=False)
class Started:
    """A batch that the batcher handed to the engine."""

    members: list[PendingRequest]
    at: float
    done: Done = field(repr=False)

    @property
    def tokens(self) -> list[int]:
        return [member.tokens for member in self.members]

    def succeed(self, report: BatchReport = REPORT) -> None:
        """Answer each member with its own number of bytes."""
        self.end((report, [memoryview(bytearray(m.output_nbytes)) for m in self.members]))

    def end(self, outcome: Outcome) -> None:
        """As the engine's thread does: the batcher hears of it in a later iteration."""
        asyncio.get_running_loop().call_soon(self.done, outcome)


class Harness:
    """Made inside a running loop.

    Attributes:
        started: All batches so far, in order; the test ends them.
        deaths: What `on_dead` was called with.
    """

    def __init__(
        self,
        *,
        max_tokens: int = 8,
        delay_s: float = 0.0,
        concurrency: int = 1,
        max_queue_tokens: int = 1000,
        max_queue_bytes: int = 1 << 20,
        hang_timeout_s: float = 0.0,
        small_tokens: int = 0,
        max_small: int = 1,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = Limits(max_tokens, delay_s, small_tokens, max_small)
        self.arena = Arena(1 << 20)
        self.admission = Admission(
            self.arena, max_queue_tokens=max_queue_tokens, max_queue_bytes=max_queue_bytes
        )
        self.metrics = Metrics(
            outcomes=outcomes(), kernels=("fake",), build={"version": "0"}, peak_flops=None
        )
        self.started: list[Started] = []
        self.deaths: list[BaseException] = []
        self.batcher = Batcher(
            self._start,
            model=spec(layers=(0, 1), hidden=HIDDEN),
            concurrency=concurrency,
            limits=self.limits,
            metrics=self.metrics,
            on_dead=self.deaths.append,
            clock=self.loop.time,
            hang_timeout_s=hang_timeout_s,
        )

    def _start(self, members: Sequence[PendingRequest], done: Done) -> None:
        self.started.append(Started(list(members), self.loop.time(), done))

    def request(
        self,
        tokens: int,
        *,
        layer: int = 0,
        output: Output = Output.MLP,
        deadline_s: float | None = None,
    ) -> PendingRequest:
        """An admitted request; its deadline counts from now."""
        nbytes = tokens * HIDDEN * 4
        lease = self.admission.admit(tokens, nbytes)
        return PendingRequest(
            layer=layer,
            output=output,
            tokens=tokens,
            data=lease.slot.view,
            dtype=DType.FP32,
            output_dtype=DType.FP32,
            output_nbytes=nbytes,
            lease=lease,
            deadline=None if deadline_s is None else self.loop.time() + deadline_s,
        )

    def submit(
        self,
        tokens: int,
        *,
        layer: int = 0,
        output: Output = Output.MLP,
        deadline_s: float | None = None,
    ) -> PendingRequest:
        """Admit and submit; the answer comes in the request's future."""
        request = self.request(tokens, layer=layer, output=output, deadline_s=deadline_s)
        self.batcher.submit(request)
        return request

    def sample(self, name: str, **labels: str) -> float | None:
        """The value of a metric's series."""
        return self.metrics.registry.get_sample_value(name, labels)

    @property
    def queued(self) -> tuple[int, int, int]:
        """Requests, tokens and bytes in the admission ledger."""
        return self.admission.requests, self.admission.tokens, self.admission.bytes


async def answer(request: PendingRequest) -> Answer:
    """The request's answer; its exception is raised."""
    return await request.future


def has_slot(request: PendingRequest) -> bool:
    """Whether the request still keeps its slot out of the arena."""
    slot = request.lease.slot
    return slot._block is not None
