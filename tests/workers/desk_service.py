"""A desk whose front end and engine are the test."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from service.batching.admission import Admission
from service.batching.batcher import Batcher
from service.batching.blocks import Blocks
from service.batching.policy import Limits
from service.engine.base import DType, Output
from service.errors import outcomes
from service.local_regions import LocalRegions
from service.metrics import Metrics
from service.shared_memory import RegionTable
from service.shared_requests import SharedRequests
from service.workers.desk import Desk
from service.workers.records import (
    Kind,
    Record,
    pack_form,
)
from service.workers.rooms import ROOM_BYTES, ROOMS
from tests.batching.harness import REPORT
from tests.engines import HIDDEN, spec

FORM = pack_form(Output.MLP, DType.FP32, DType.FP32)
ROW = 4 * HIDDEN


class _Channel:
    """Keeps what the desk says."""

    def __init__(self) -> None:
        self.said: list[Record] = []
        self.is_open = True

    def send(self, record: Record) -> None:
        if self.is_open:
            self.said.append(record)

    def close(self) -> None:
        self.is_open = False


class Service:
    """A desk around a batcher whose engine ends a batch when the test says so."""

    def __init__(self, concurrency: int = 1, *, shares: bool = True) -> None:
        self.bodies = Blocks(memoryview(bytearray(1 << 16)), "bodies")
        self.answers = Blocks(memoryview(bytearray(1 << 14)), "answers")
        self.rooms = Blocks(memoryview(bytearray(2 * ROOMS * ROOM_BYTES)), "rooms")
        self.admission = Admission(self.bodies, max_queue_tokens=50, max_queue_bytes=1 << 20)
        self.metrics = Metrics(outcomes=outcomes(), kernels=("fake",), build={}, peak_flops=None)
        self.batches: list[tuple] = []
        self.batcher = Batcher(
            lambda members, done: self.batches.append((list(members), done)),
            model=spec(),
            concurrency=concurrency,
            limits=Limits(8, 0.0),
            metrics=self.metrics,
            on_dead=lambda _: None,
        )
        self.channel = _Channel()
        self.regions = RegionTable(None, 1 << 20)
        moved = self.metrics.shared_memory_moved
        self.desk = Desk(
            self._open,
            model=spec(),
            admission=self.admission,
            batcher=self.batcher,
            metrics=self.metrics,
            answers=self.answers,
            rooms=self.rooms,
            on_ready=lambda: None,
            regions=LocalRegions(self.regions) if shares else None,
            shared=SharedRequests(self.regions, self.batcher, moved, 1 << 20) if shares else None,
        )

    def _open(self, hear: Callable[[Record, list[int]], None]) -> _Channel:
        self._hear = hear
        return self.channel

    def tell(self, kind: Kind, **fields: object) -> None:
        self._hear(Record(kind, **fields), [])

    def admit(self, request: int, rows: int = 2) -> Record:
        nbytes = rows * ROW
        self.tell(Kind.ADMIT, request=request, tokens=rows, nbytes=nbytes, body_bytes=nbytes)
        return self.channel.said[-1]

    def submit(self, request: int, rows: int = 2, **other: object) -> None:
        granted = self.admit(request, rows)
        fields = {
            "offset": granted.offset,
            "nbytes": rows * ROW,
            "tokens": rows,
            "body_bytes": rows * ROW,
            "first_s": math.inf,
            "flag": FORM,
        }
        self.tell(Kind.SUBMIT, request=request, **{**fields, **other})

    async def run(self, turns: int = 5) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def finish(self, outcome: BaseException | None = None) -> None:
        """The engine ends the oldest batch."""
        members, done = self.batches.pop(0)
        done(outcome or (REPORT, [member.output_data for member in members]))
        await self.run()

    @property
    def lent(self) -> tuple[int, ...]:
        admission = self.admission
        budget = (admission.requests, admission.tokens, admission.bytes)
        return (*budget, self.bodies.lent_bytes, self.answers.lent_bytes, self.desk.requests)


NOTHING = (0, 0, 0, 0, 0, 0)


def run(test: Callable[[Service], Awaitable[None]]) -> None:
    """Run a test with a service of its own."""

    async def with_service() -> None:
        await test(Service())

    asyncio.run(with_service())
