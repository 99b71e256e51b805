"""Both sides of bundles in one process: what one says reaches the other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import numpy as np

from service.batching.admission import Admission
from service.batching.batcher import Batcher
from service.batching.blocks import Blocks
from service.batching.policy import Limits
from service.batching.request import Answer, PendingRequest
from service.config import Settings
from service.counts import FrontCounts
from service.engine.base import DType, Output
from service.errors import outcomes
from service.metrics import Metrics
from service.workers.bundle_desk import BundleDesk
from service.workers.bundles import Bundles, Gathered
from service.workers.free_rooms import FreeRooms
from service.workers.records import Kind, Record, unpack_error
from service.workers.rooms import ROOM_BYTES, ROOMS, gathering
from tests.batching.harness import REPORT
from tests.engines import HIDDEN, spec


class Pair:
    """A front end's bundles, their desk, and a batcher whose engine ends batches on demand.

    The engine answers each row with itself.

    Attributes:
        said: What the front end has said.
        batches: Members and `done` of those that the engine has, the oldest first.
        alone: Requests that went by themselves; the test ends their futures.
    """

    def __init__(self, *, concurrency: int = 1, **settings: object) -> None:
        self.settings = Settings(workers=1, **settings)
        self.memory = memoryview(bytearray(2 * ROOMS * ROOM_BYTES))
        self.rooms = Blocks(self.memory, "rooms")
        self.counts = FrontCounts(outcomes())
        self.metrics = Metrics(outcomes=outcomes(), kernels=("fake",), build={}, peak_flops=None)
        self.admission = Admission(
            Blocks(memoryview(bytearray(1 << 16)), "bodies"),
            max_queue_tokens=self.settings.max_queue_tokens,
            max_queue_bytes=self.settings.max_queue_bytes,
        )
        aside = gathering(self.settings)
        self.admission.set_aside(aside.tokens, aside.nbytes)
        self.batches: list[tuple[list[PendingRequest], Callable]] = []
        self.said: list[Record] = []
        self.alone: list[tuple[PendingRequest, asyncio.Future[Answer]]] = []
        self._concurrency = concurrency
        self.desk = self.new_desk()
        self.free = FreeRooms(self.counts)
        self.bundles = Bundles(
            self.memory,
            self.settings,
            self.free,
            numbers=itertools.count(1).__next__,
            say=self._say,
            alone=self._alone,
        )
        self.desk.open()

    def new_desk(self) -> BundleDesk:
        batcher = Batcher(
            lambda members, done: self.batches.append((list(members), done)),
            model=spec(),
            concurrency=self._concurrency,
            limits=Limits(self.settings.max_batch_tokens, 0.0),
            metrics=self.metrics,
            on_dead=lambda _: None,
        )
        return BundleDesk(
            self.rooms,
            model=spec(),
            admission=self.admission,
            batcher=batcher,
            say=self._hear,
        )

    def request(
        self,
        rows: np.ndarray,
        *,
        output: Output = Output.MLP,
        timeout_s: float | None = None,
    ) -> PendingRequest | None:
        """Add a request with these rows of fp32; None where it is not taken."""
        data = memoryview(rows.tobytes())
        if not self.bundles.takes(len(rows), data.nbytes):
            return None
        request = PendingRequest(
            layer=0,
            output=output,
            tokens=len(rows),
            data=data,
            dtype=DType.FP32,
            output_dtype=DType.FP32,
            output_nbytes=len(rows) * spec().width(output) * 4,
            lease=Gathered(),
            deadline=None if timeout_s is None else self.bundles._clock() + timeout_s,
        )
        return request if self.bundles.add(request) is not None else None

    async def turn(self, turns: int = 6) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def finish(self, outcome: BaseException | None = None) -> None:
        """The engine ends its oldest batch."""
        members, done = self.batches.pop(0)
        if outcome is None:
            for member in members:
                echo(member)
        done(outcome or (REPORT, [member.output_data for member in members]))
        await self.turn()

    @property
    def held(self) -> tuple[int, ...]:
        """All that anybody holds or counts as waiting; the rooms themselves are for good."""
        admission = self.admission
        budget = (admission.requests, admission.tokens, admission.bytes)
        return (*budget, *self.counts.gathered, len(self.desk))

    def _say(self, record: Record) -> None:
        self.said.append(record)
        if record.kind == Kind.BUNDLE:
            try:
                self.desk.submit(record)
            except Exception as error:
                self.bundles.failed(record.request, error)
                if not hasattr(error, "code"):
                    raise
        else:
            assert record.kind == Kind.CANCEL
            self.desk.cancel(record.request)

    def _hear(self, record: Record) -> None:
        if record.kind == Kind.ROOM:
            # Heard once there is somebody to hear it.
            asyncio.get_running_loop().call_soon(lambda: self.free.add(record.offset))
        elif record.kind == Kind.DONE:
            assert self.bundles.done(record)
        else:
            assert self.bundles.failed(record.request, unpack_error(record.text))

    async def _alone(self, request: PendingRequest) -> asyncio.Future[Answer]:
        future = asyncio.get_running_loop().create_future()
        self.alone.append((request, future))
        return future


def echo(member: PendingRequest) -> None:
    """Each row's answer: its own first value, as often as an answer is wide."""
    x = np.frombuffer(member.data, np.float32).reshape(member.tokens, HIDDEN)
    out = np.frombuffer(member.output_data, np.float32).reshape(member.tokens, -1)
    out[:] = x[:, :1]


def numbered(count: int, first: int) -> np.ndarray:
    """Rows that hold their own number."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], HIDDEN, axis=1)


NOTHING = (0, 0, 0, 0, 0, 0, 0)
