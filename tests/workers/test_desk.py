"""What a front end holds comes back in whatever state it dies; nonsense is refused."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable

import pytest

from service.batching.admission import Admission
from service.batching.batcher import Batcher
from service.batching.blocks import Blocks
from service.batching.policy import Limits
from service.engine.base import DType, Output
from service.errors import outcomes
from service.local_regions import LocalRegions
from service.metrics import Metrics
from service.shared_memory import RegionTable
from service.shared_region import Region
from service.shared_requests import SharedRequests
from service.wire.window import Window
from service.workers.desk import Desk
from service.workers.records import (
    Document,
    Kind,
    Record,
    pack_form,
    pack_windows,
    unpack_error,
)
from service.workers.rooms import ROOM_BYTES, ROOMS
from tests.batching.harness import REPORT
from tests.engines import HIDDEN, spec
from tests.shared_objects import shared_object

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


class _Service:
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


def _run(test: Callable[[_Service], Awaitable[None]]) -> None:
    async def with_service() -> None:
        await test(_Service())

    asyncio.run(with_service())


def test_the_whole_way():
    async def test(service: _Service) -> None:
        service.submit(1)
        await service.run()
        assert len(service.batches) == 1
        await service.finish()
        done = service.channel.said[-1]
        assert (done.kind, done.request, done.nbytes) == (Kind.DONE, 1, 2 * ROW)
        assert (done.tokens, done.text) == (2, b"fake")
        # The answer stays until the front end has it; body and budget do not.
        assert service.lent == (0, 0, 0, 0, 4096, 1)
        service.tell(Kind.RELEASE, request=1)
        assert service.lent == NOTHING

    _run(test)


def test_a_front_end_that_dies_gives_back_what_is_granted_queued_and_answered():
    async def test(service: _Service) -> None:
        service.submit(1)
        await service.run()
        await service.finish()
        service.submit(2)
        await service.run()
        service.submit(3)
        service.admit(4)
        await service.run()
        service.desk.closed()
        await service.run()
        # What the engine works on keeps its slots, and nothing else does.
        assert service.lent == (0, 0, 0, 4096, 4096, 0)
        assert len(service.batches) == 1
        await service.finish()
        assert service.lent == NOTHING
        assert not service.batches

    _run(test)


@pytest.mark.parametrize("outcome", [None, RuntimeError("engine trouble")])
def test_a_client_that_leaves_while_its_rows_are_computed(outcome):
    async def test(service: _Service) -> None:
        service.submit(1)
        await service.run()
        service.tell(Kind.CANCEL, request=1)
        await service.run()
        assert unpack_error(service.channel.said[-1].text).code == "cancelled"
        assert service.lent == (0, 0, 0, 4096, 4096, 0)
        await service.finish(outcome)
        assert service.lent == NOTHING
        # Its end and the client's leaving may cross.
        service.tell(Kind.CANCEL, request=1)
        assert service.channel.is_open

    _run(test)


def test_a_failed_batch_gives_its_slots_back():
    async def test(service: _Service) -> None:
        service.submit(1)
        await service.run()
        await service.finish(RuntimeError("engine trouble"))
        assert unpack_error(service.channel.said[-1].text).code == "engine_error"
        assert service.lent == NOTHING

    _run(test)


def test_no_room_for_answers_is_queue_full_and_holds_nothing():
    async def test(service: _Service) -> None:
        for request in range(1, 6):
            service.submit(request)
        error = unpack_error(service.channel.said[-1].text)
        assert (error.code, service.channel.said[-1].request) == ("queue_full", 5)
        assert str(error).startswith("answers: 16384 of 16384 bytes")
        assert service.desk.requests == 4
        service.desk.closed()
        assert service.lent == NOTHING

    _run(test)


def test_budget_that_is_refused_or_grown():
    async def test(service: _Service) -> None:
        assert service.admit(1, 51).kind == Kind.FAILED
        assert service.lent == NOTHING
        service.admit(2, 40)
        service.tell(Kind.GROW, request=2, tokens=51, nbytes=10)
        assert unpack_error(service.channel.said[-1].text).code == "queue_full"
        service.tell(Kind.GROW, request=2, tokens=50, nbytes=10)
        assert service.channel.said[-1].kind == Kind.GRANT
        assert service.lent[:3] == (1, 50, 10)
        service.tell(Kind.PLACE, request=2, nbytes=9000)
        assert service.channel.said[-1].nbytes == 9000
        assert service.bodies.lent_bytes == 1 << 14
        service.tell(Kind.PLACE, request=2, nbytes=1 << 20)
        assert unpack_error(service.channel.said[-1].text).code == "queue_full"
        service.tell(Kind.RELEASE, request=2)
        assert service.lent == NOTHING

    _run(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nbytes": 2 * ROW - 4},
        {"tokens": 3},
        {"offset": 8192},
        {"offset": -4096},
        {"offset": 8},
        {"layer": 1},
        {"flag": 250},
        {"tokens": -2},
    ],
)
def test_rows_outside_their_slot_end_the_front_end_and_touch_nobody(wrong):
    async def test(service: _Service) -> None:
        service.admit(9)
        service.submit(1, **wrong)
        assert not service.channel.is_open
        assert not service.batches
        service.desk.closed()
        assert service.lent == NOTHING

    _run(test)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.RELEASE, {"request": 5}),
        (Kind.GROW, {"request": 5}),
        (Kind.SUBMIT, {"request": 5}),
        (Kind.SUBMIT, {"request": 1}),
        (Kind.PLACE, {"request": 1, "nbytes": 1}),
        (Kind.RELEASE, {"request": 1}),
        (Kind.ADMIT, {"request": 1}),
        (Kind.GRANT, {}),
        (99, {}),
    ],
)
def test_what_makes_no_sense_ends_the_front_end(kind, fields):
    async def test(service: _Service) -> None:
        service.submit(1)
        service.tell(kind, **fields)
        assert not service.channel.is_open
        service.desk.closed()
        await service.run()
        assert service.lent == NOTHING

    _run(test)


def test_documents_come_in_pieces():
    async def test(service: _Service) -> None:
        service.tell(Kind.ASK, request=3, flag=Document.METRICS)
        pieces = [record for record in service.channel.said if record.kind == Kind.TEXT]
        assert [piece.flag for piece in pieces] == [0] * (len(pieces) - 1) + [1]
        assert b"".join(piece.text for piece in pieces).startswith(b"# HELP mlp_requests_total")
        service.tell(Kind.ASK, request=4, flag=Document.STATISTICS)
        assert json.loads(service.channel.said[-1].text)["success"] == 0

    _run(test)


SHARED = pack_windows(Window("r", 0, 2 * ROW), Window("r", 2 * ROW, 2 * ROW))


def test_rows_in_clients_memory_go_from_it_and_to_it():
    async def test(service: _Service) -> None:
        with shared_object(4 * ROW) as made:
            made.write(0, b"x" * (2 * ROW))
            await service.regions.register("r", made.key, 0, 4 * ROW)
            service.submit(1, text=SHARED, nbytes=0)
            await service.run()
            ((members, _),) = service.batches
            assert members[0].data == b"x" * (2 * ROW)
            members[0].output_data[:] = b"y" * (2 * ROW)
            await service.finish()
            done = service.channel.said[-1]
            assert (done.kind, done.request, done.nbytes) == (Kind.DONE, 1, 0)
            assert made.read(0, 4 * ROW) == b"x" * (2 * ROW) + b"y" * (2 * ROW)
            service.tell(Kind.RELEASE, request=1)
            assert service.lent == NOTHING
            assert service.regions.status(Region, "r")[0]._users == 1

    _run(test)


def test_a_front_end_that_dies_while_its_input_is_read(monkeypatch):
    monkeypatch.setattr("service.shared_tensors._OFF_LOOP_BYTES", 0)
    may_go_on = threading.Event()
    read = Region.read

    def slow_read(self: Region, offset: int, target: memoryview) -> None:
        may_go_on.wait(10)
        read(self, offset, target)

    monkeypatch.setattr(Region, "read", slow_read)

    async def test(service: _Service) -> None:
        with shared_object(4 * ROW) as made:
            await service.regions.register("r", made.key, 0, 4 * ROW)
            service.submit(1, text=SHARED, nbytes=0)
            await service.run()
            # It may not have its slot back before the thread has written to it.
            service.tell(Kind.RELEASE, request=1)
            assert not service.channel.is_open
            service.desk.closed()
            assert service.bodies.lent_bytes > 0
            may_go_on.set()
            await asyncio.gather(*service.desk._tasks)
            assert service.lent == NOTHING
            assert not service.batches
            assert service.regions.status(Region, "r")[0]._users == 1

    _run(test)


@pytest.mark.parametrize(
    ("windows", "sentence"),
    [
        ((Window("s", 0, 2 * ROW), None), "'s' is not"),
        ((None, Window("r", 4 * ROW, 2 * ROW)), "must end within"),
        ((Window("r", 0, 2 * ROW), Window("r", ROW, 2 * ROW)), "they overlap"),
    ],
)
def test_windows_that_are_refused_hold_nothing(windows, sentence):
    async def test(service: _Service) -> None:
        with shared_object(4 * ROW) as made:
            await service.regions.register("r", made.key, 0, 4 * ROW)
            service.submit(1, text=pack_windows(*windows))
            await service.run()
            assert sentence in str(unpack_error(service.channel.said[-1].text))
            assert service.lent == NOTHING
            assert service.regions.status(Region, "r")[0]._users == 1

    _run(test)


def test_regions_by_records():
    async def test(service: _Service) -> None:
        async def call(*call: object) -> Record:
            service.tell(Kind.REGION, request=7, text=json.dumps(call).encode())
            await service.run(20)
            return service.channel.said[-1]

        with shared_object(100) as made:
            assert (await call("register", "r", made.key, 10, 90)).text == b"null"
            assert json.loads((await call("status", None)).text) == [["r", made.key, 10, 90]]
            taken = await call("register", "r", made.key, 10, 90)
            assert (taken.kind, unpack_error(taken.text).code) == (Kind.FAILED, "invalid")
            assert (await call("unregister", "r")).text == b"null"
            assert unpack_error((await call("status", "r")).text).code == "not_found"
            assert service.channel.is_open
            # The engine opens no memory of a GPU, and front ends were told so.
            await call("status_cuda", None)
            assert not service.channel.is_open

    _run(test)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.SUBMIT, {"text": SHARED, "tokens": 2, "flag": FORM}),
        (Kind.REGION, {"text": b'["status", null]'}),
    ],
)
def test_clients_memory_where_it_is_not_allowed_ends_the_front_end(kind, fields):
    async def with_service() -> None:
        service = _Service(shares=False)
        service.admit(1)
        service.tell(kind, request=1, **fields)
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    asyncio.run(with_service())


def test_a_window_of_another_size_than_its_rows_ends_the_front_end():
    async def test(service: _Service) -> None:
        service.submit(1, text=pack_windows(Window("r", 0, ROW), None))
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    _run(test)
