"""A front end's rooms: nonsense is refused, and nobody writes where the engine still does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from service.engine.base import DType, Output
from service.workers.records import Kind, Record, pack_form
from service.workers.rooms import HALF_BYTES, ROOM_BYTES, ROOMS
from tests.engines import HIDDEN
from tests.workers.bundle_pair import NOTHING, Pair, numbered

ROW = 4 * HIDDEN


def _run(test: Callable[[Pair], Awaitable[None]], **settings: object) -> None:
    async def with_pair() -> None:
        pair = Pair(**settings)
        await pair.turn()
        await test(pair)

    asyncio.run(with_pair())


def _bundle(**other: object) -> Record:
    fields = {
        "flag": pack_form(Output.MLP, DType.FP32, DType.FP32),
        "request": 99,
        "offset": 0,
        "nbytes": 4 * ROW,
        "tokens": 4,
        "body_bytes": 2,
        "first_s": math.inf,
    }
    return Record(Kind.BUNDLE, **{**fields, **other})


LARGE = HALF_BYTES // ROW + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 64},
        {"offset": ROOMS * ROOM_BYTES},
        {"nbytes": 4 * ROW - 4},
        {"tokens": 3},
        {"tokens": 0, "nbytes": 0, "body_bytes": 0},
        {"tokens": -1, "nbytes": -ROW, "body_bytes": -1},
        {"body_bytes": 0},
        {"body_bytes": 5},
        {"layer": 1},
        {"flag": 250},
        {"tokens": LARGE, "nbytes": LARGE * ROW},
        # Rows that fit, and answers twice as wide that do not.
        {
            "tokens": LARGE // 2 + 1,
            "nbytes": (LARGE // 2 + 1) * ROW,
            "flag": pack_form(Output.GATED, DType.FP32, DType.FP32),
        },
    ],
)
def test_what_makes_no_sense_is_refused_and_holds_nothing(wrong):
    async def test(pair: Pair) -> None:
        with pytest.raises((ValueError, KeyError, IndexError)):
            pair.desk.submit(_bundle(**wrong))
        assert not pair.batches
        assert pair.held == NOTHING

    _run(test)


@pytest.mark.parametrize("other", [{"request": 100}, {"offset": ROOM_BYTES}])
def test_a_room_and_a_number_are_used_once_at_a_time(other):
    async def test(pair: Pair) -> None:
        pair.desk.submit(_bundle())
        with pytest.raises(ValueError, match="free room"):
            pair.desk.submit(_bundle(**other))
        pair.desk.closed()

    _run(test)


def test_rooms_of_a_dead_front_end_come_back_when_the_engine_is_through():
    async def test(pair: Pair) -> None:
        pair.request(numbered(1, 1))
        await pair.turn()
        pair.request(numbered(1, 2))
        await pair.turn()
        before = pair.rooms.lent_bytes
        assert before == ROOMS * ROOM_BYTES
        pair.desk.closed()
        await pair.turn()
        # One is computed, the other was queued.
        assert pair.rooms.lent_bytes == ROOM_BYTES
        assert pair.admission.requests == 0
        next_desk = pair.new_desk()
        next_desk.open()
        assert pair.rooms.lent_bytes == (1 + ROOMS) * ROOM_BYTES
        _, done = pair.batches.pop(0)
        done(RuntimeError("whatever"))
        await pair.turn()
        assert pair.rooms.lent_bytes == ROOMS * ROOM_BYTES
        next_desk.closed()
        assert pair.rooms.lent_bytes == 0

    _run(test)


def test_a_front_end_gets_as_many_rooms_as_there_are():
    async def test(pair: Pair) -> None:
        desks = [pair.new_desk() for _ in range(3)]
        for desk in desks:
            desk.open()
        assert [len(desk._rooms) for desk in desks] == [2, 0, 0]

    _run(test)
