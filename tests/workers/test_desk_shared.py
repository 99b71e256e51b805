"""Requests whose tensors are in clients' memory, as a front end asks for them."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable

import pytest

from service.shared_region import Region
from service.wire.window import Window
from service.workers.records import (
    Kind,
    Record,
    pack_windows,
    unpack_error,
)
from tests.shared_objects import shared_object
from tests.workers.desk_service import FORM, NOTHING, ROW, Service, run

SHARED = pack_windows(Window("r", 0, 2 * ROW), Window("r", 2 * ROW, 2 * ROW))


def run_with_region(test: Callable[[Service], Awaitable[None]]) -> None:
    """Run a test whose client has registered `r`, of four rows."""

    async def with_region(service: Service) -> None:
        with shared_object(4 * ROW) as made:
            await service.regions.register("r", made.key, 0, 4 * ROW)
            await test(service)

    run(with_region)


def test_rows_in_clients_memory_go_from_it_and_to_it():
    async def test(service: Service) -> None:
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

    run(test)


def test_a_front_end_that_dies_while_its_input_is_read(monkeypatch):
    monkeypatch.setattr("service.shared_tensors._OFF_LOOP_BYTES", 0)
    may_go_on = threading.Event()
    read = Region.read

    def slow_read(self: Region, offset: int, target: memoryview) -> None:
        may_go_on.wait(10)
        read(self, offset, target)

    monkeypatch.setattr(Region, "read", slow_read)

    async def test(service: Service) -> None:
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

    run_with_region(test)


@pytest.mark.parametrize(
    ("windows", "sentence"),
    [
        ((Window("s", 0, 2 * ROW), None), "'s' is not"),
        ((None, Window("r", 4 * ROW, 2 * ROW)), "must end within"),
        ((Window("r", 0, 2 * ROW), Window("r", ROW, 2 * ROW)), "they overlap"),
    ],
)
def test_windows_that_are_refused_hold_nothing(windows, sentence):
    async def test(service: Service) -> None:
        service.submit(1, text=pack_windows(*windows))
        await service.run()
        assert sentence in str(unpack_error(service.channel.said[-1].text))
        assert service.lent == NOTHING
        assert service.regions.status(Region, "r")[0]._users == 1

    run_with_region(test)


def test_regions_by_records():
    async def test(service: Service) -> None:
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

    run(test)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.SUBMIT, {"text": SHARED, "tokens": 2, "flag": FORM}),
        (Kind.REGION, {"text": b'["status", null]'}),
    ],
)
def test_clients_memory_where_it_is_not_allowed_ends_the_front_end(kind, fields):
    async def with_service() -> None:
        service = Service(shares=False)
        service.admit(1)
        service.tell(kind, request=1, **fields)
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    asyncio.run(with_service())


def test_a_window_of_another_size_than_its_rows_ends_the_front_end():
    async def test(service: Service) -> None:
        service.submit(1, text=pack_windows(Window("r", 0, ROW), None))
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    run(test)


def say_shared(service: Service, number: int, **other: object) -> None:
    fields = {"nbytes": 100, "tokens": 2, "first_s": math.inf, "flag": FORM, "text": SHARED}
    service.tell(Kind.SHARED, request=number, **{**fields, **other})


def test_a_request_of_clients_memory_is_admitted_and_queued_at_once():
    async def test(service: Service) -> None:
        said = len(service.channel.said)
        say_shared(service, 1)
        await service.run()
        assert len(service.batches) == 1
        await service.finish()
        # One word, and nothing to fetch.
        (done,) = service.channel.said[said:]
        assert (done.kind, done.request, done.nbytes) == (Kind.DONE, 1, 0)
        service.tell(Kind.RELEASE, request=1)
        assert service.lent == NOTHING

    run_with_region(test)


def test_one_that_finds_no_room_is_refused_and_holds_nothing():
    async def test(service: Service) -> None:
        say_shared(service, 1, nbytes=1 << 40)
        failed = service.channel.said[-1]
        assert (failed.kind, failed.request) == (Kind.FAILED, 1)
        assert unpack_error(failed.text).code == "queue_full"
        assert service.lent == NOTHING
        assert service.channel.is_open
        # Its number is free again.
        say_shared(service, 1)
        await service.run()
        await service.finish()
        assert service.channel.said[-1].kind == Kind.DONE

    run_with_region(test)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": b""},
        {"text": pack_windows(None, Window("r", 0, 2 * ROW))},
        {"tokens": 3},
        {"layer": 5},
    ],
)
def test_one_that_makes_no_sense_ends_the_front_end(fields: dict[str, object]):
    async def test(service: Service) -> None:
        say_shared(service, 1, **fields)
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    run(test)


def test_one_whose_number_is_taken_ends_the_front_end():
    async def test(service: Service) -> None:
        service.admit(1)
        say_shared(service, 1)
        assert not service.channel.is_open
        service.desk.closed()
        assert service.lent == NOTHING

    run(test)


def test_one_that_is_cancelled_while_its_input_is_read_is_not_computed():
    async def test(service: Service) -> None:
        say_shared(service, 1)
        service.tell(Kind.CANCEL, request=1)
        await service.run()
        assert not service.batches
        assert unpack_error(service.channel.said[-1].text).code == "cancelled"
        assert service.lent == NOTHING

    run_with_region(test)
