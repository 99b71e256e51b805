import asyncio
import sys

import pytest

from service.errors import StartError
from service.load import driver
from service.load.client import Connection, connect
from service.load.faults import Fault
from service.load.options import LoadOptions
from service.load.run import run_load
from tests.load.fake_server import FakeServer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Owner:
    def __init__(self):
        self.told = []

    def answered(self, connection, answer):
        self.told.append(("answered", bytes(answer.body), connection.is_open))

    def failed(self, connection, fault, message):
        assert not connection.is_open
        self.told.append((fault, message))

    def lost(self, connection):
        assert not connection.is_open
        self.told.append(("lost",))


class Transport:
    def __init__(self):
        self.written = b""
        self.is_aborted = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.is_aborted = True


@pytest.fixture
def line():
    owner, transport = Owner(), Transport()
    connection = Connection(owner)
    connection.connection_made(transport)
    return connection, owner, transport


def deliver(connection, data):
    buffer = connection.get_buffer(-1)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


def test_request_and_answer(line):
    connection, owner, transport = line
    for number in (1, 2):
        connection.send(b"ask")
        deliver(connection, ANSWER)
        assert owner.told == [("answered", b"ok", True)] * number
    assert transport.written == b"askask"


def test_an_answer_that_closes(line):
    connection, owner, transport = line
    connection.send(b"ask")
    deliver(connection, ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
    connection.connection_lost(None)
    assert owner.told == [("answered", b"ok", False)]
    assert transport.is_aborted


@pytest.mark.parametrize(
    ("received", "error", "message"),
    [
        (b"", None, "connection closed after no head"),
        (ANSWER[:-1], None, "connection closed after 1 of 2 body bytes"),
        (b"", ConnectionResetError("reset by peer"), "closed after no head (reset by peer)"),
    ],
)
def test_a_close_in_the_middle(line, received, error, message):
    connection, owner, _ = line
    connection.send(b"ask")
    if received:
        deliver(connection, received)
    connection.connection_lost(error)
    ((fault, told),) = owner.told
    assert fault is Fault.RESET
    assert message in told


def test_a_close_while_idle(line):
    connection, owner, _ = line
    connection.connection_lost(None)
    assert owner.told == [("lost",)]


def test_data_while_idle(line):
    connection, owner, transport = line
    deliver(connection, ANSWER)
    connection.connection_lost(None)
    assert owner.told == [(Fault.PROTOCOL, "data without a request")]
    assert transport.is_aborted


def test_after_an_abort_nobody_is_told_anything(line):
    connection, owner, transport = line
    connection.send(b"ask")
    connection.abort()
    deliver(connection, ANSWER)
    connection.connection_lost(None)
    assert owner.told == []
    assert transport.is_aborted
    assert not connection.is_open


def test_a_connection_given_up_before_it_is_made_is_closed_when_it_is():
    connection, transport = Connection(Owner()), Transport()
    connection.abort()
    connection.connection_made(transport)
    assert transport.is_aborted
    assert not connection.is_open


def test_no_connection_is_left_behind_by_an_attempt_that_came_too_late(monkeypatch):
    """On asyncio itself, where a transport left behind is a warning, and those are errors here."""

    async def be_late(made, timeout):
        await made
        raise asyncio.TimeoutError

    async def main(address):
        with pytest.raises(asyncio.TimeoutError):
            await connect(Owner(), address, 1.0)
        await asyncio.sleep(0.05)

    with FakeServer() as server:
        monkeypatch.setattr(asyncio, "wait_for", be_late)
        asyncio.run(main(LoadOptions(url=server.url).address))


def test_no_connection_is_left_behind_if_one_cannot_be_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    attempts = []

    async def connect_but_for_one(*args):
        attempts.append(args)
        if len(attempts) == 3:
            raise OSError("too many")
        return await connect(*args)

    monkeypatch.setattr(driver, "connect", connect_but_for_one)
    with FakeServer() as server, pytest.raises(StartError, match="cannot be made: too many"):
        run_load(LoadOptions(url=server.url, connections=5, quiet=True))
    assert len(attempts) == 5


def test_it_runs_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with FakeServer() as server:
        options = LoadOptions(
            url=server.url, rows=((5000, 1.0),), duration_s=0.3, warm_up_s=0.0, quiet=True
        )
        result = run_load(options).results[0]
    assert result.ok
    # 160 kB each: too large to be compared in every element.
    assert result.compared_in_part == result.sent > 3
