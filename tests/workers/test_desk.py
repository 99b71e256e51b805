"""What a front end holds comes back in whatever state it dies; nonsense is refused."""

from __future__ import annotations

import json

import pytest

from service.workers.records import (
    Document,
    Kind,
    unpack_error,
)
from tests.workers.desk_service import NOTHING, ROW, Service, run


def test_the_whole_way():
    async def test(service: Service) -> None:
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

    run(test)


def test_a_front_end_that_dies_gives_back_what_is_granted_queued_and_answered():
    async def test(service: Service) -> None:
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

    run(test)


@pytest.mark.parametrize("outcome", [None, RuntimeError("engine trouble")])
def test_a_client_that_leaves_while_its_rows_are_computed(outcome):
    async def test(service: Service) -> None:
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

    run(test)


def test_a_failed_batch_gives_its_slots_back():
    async def test(service: Service) -> None:
        service.submit(1)
        await service.run()
        await service.finish(RuntimeError("engine trouble"))
        assert unpack_error(service.channel.said[-1].text).code == "engine_error"
        assert service.lent == NOTHING

    run(test)


def test_no_room_for_answers_is_queue_full_and_holds_nothing():
    async def test(service: Service) -> None:
        for request in range(1, 6):
            service.submit(request)
        error = unpack_error(service.channel.said[-1].text)
        assert (error.code, service.channel.said[-1].request) == ("queue_full", 5)
        assert str(error).startswith("answers: 16384 of 16384 bytes")
        assert service.desk.requests == 4
        service.desk.closed()
        assert service.lent == NOTHING

    run(test)


def test_budget_that_is_refused_or_grown():
    async def test(service: Service) -> None:
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

    run(test)


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
    async def test(service: Service) -> None:
        service.admit(9)
        service.submit(1, **wrong)
        assert not service.channel.is_open
        assert not service.batches
        service.desk.closed()
        assert service.lent == NOTHING

    run(test)


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
    async def test(service: Service) -> None:
        service.submit(1)
        service.tell(kind, **fields)
        assert not service.channel.is_open
        service.desk.closed()
        await service.run()
        assert service.lent == NOTHING

    run(test)


def test_documents_come_in_pieces():
    async def test(service: Service) -> None:
        service.tell(Kind.ASK, request=3, flag=Document.METRICS)
        pieces = [record for record in service.channel.said if record.kind == Kind.TEXT]
        assert [piece.flag for piece in pieces] == [0] * (len(pieces) - 1) + [1]
        assert b"".join(piece.text for piece in pieces).startswith(b"# HELP mlp_requests_total")
        service.tell(Kind.ASK, request=4, flag=Document.STATISTICS)
        assert json.loads(service.channel.said[-1].text)["success"] == 0

    run(test)
