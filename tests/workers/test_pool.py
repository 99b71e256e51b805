"""Front ends that cannot be started, or die before they are ready: tried again, or given up."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from types import SimpleNamespace

import pytest

from service.workers import pool as module
from service.workers.pool import Pool


class _FrontEnd:
    """One whose life the test decides."""

    def __init__(self, hello, *_: object, on_ready, on_gone) -> None:
        self.index = hello.index
        self.ready = self.was_ready = False
        self.exit_status = self.connections = self.taken = 0
        # Over the next connection that it is passed.
        self.breaks = False
        self._on_ready, self._on_gone = on_ready, on_gone

    def become_ready(self) -> None:
        self.ready = self.was_ready = True
        self._on_ready(self)

    def die(self) -> None:
        self.ready = False
        self.exit_status = 1
        self._on_gone(self)

    def take(self, connection: int) -> None:
        self.taken += 1
        os.close(connection)
        if self.breaks:
            self.ready = False
            self._on_ready(self)

    def tell_health(self) -> None:
        pass

    def stop(self) -> None:
        # It is heard of later, as of a process.
        asyncio.get_running_loop().call_soon(self.die)


class _Starts:
    """In place of the class of front ends: how often one is started, and whether it can be."""

    def __init__(self) -> None:
        self.count = 0
        self.error: OSError | None = None

    def __call__(self, *arguments, **named) -> _FrontEnd:
        self.count += 1
        if self.error is not None:
            raise self.error
        return _FrontEnd(*arguments, **named)


def _run(monkeypatch, test, workers: int = 2, pauses_s=(0.01, 0.01, 0.01)) -> None:
    starts = _Starts()
    monkeypatch.setattr(module, "FrontEndProcess", starts)
    monkeypatch.setattr(module, "_PAUSES_S", pauses_s)

    async def run() -> None:
        runtime = SimpleNamespace(
            settings=SimpleNamespace(workers=workers),
            model=None,
            backend="",
            device="",
            reason="",
            regions=None,
        )
        memory = SimpleNamespace(bodies=memoryview(b""))
        failed = asyncio.Event()
        pool = Pool(runtime, memory, None, None, failed.set)
        pool.open([])
        await asyncio.wait_for(test(pool, starts, failed), 10)
        pool.stop()
        await pool.ended(1)
        assert not pool.front_ends

    asyncio.run(run())


def _shortage() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_shortage_that_passes_is_survived(monkeypatch, caplog):
    async def test(pool, starts, failed) -> None:
        for front_end in [*pool.front_ends.values()]:
            front_end.become_ready()
        starts.error = _shortage()
        for front_end in [*pool.front_ends.values()]:
            front_end.die()
        assert not pool.front_ends
        # The first died with the other still there; both are tried together from then on.
        while starts.count < 6:  # noqa: ASYNC110 - whoever starts them knows no event
            await asyncio.sleep(0.001)
        starts.error = None
        while len(pool.front_ends) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not failed.is_set()

    _run(monkeypatch, test)
    assert "front end 0 cannot be started: [Errno 24] Too many open files; " in caplog.text


def test_a_shortage_that_does_not_pass_ends_the_service_when_none_is_left(monkeypatch):
    async def test(pool, starts, failed) -> None:
        first, second = [*pool.front_ends.values()]
        first.become_ready()
        second.become_ready()
        starts.error = _shortage()
        first.die()
        while starts.count < 10:  # noqa: ASYNC110 - beyond the limit, as long as another serves
            await asyncio.sleep(0.001)
        assert not failed.is_set()
        second.die()
        await failed.wait()
        count = starts.count
        await asyncio.sleep(0.05)
        assert starts.count == count

    _run(monkeypatch, test)


def test_none_can_be_started_from_the_beginning(monkeypatch, caplog):
    async def test(pool, starts, failed) -> None:
        for front_end in [*pool.front_ends.values()]:
            front_end.die()
        starts.error = _shortage()
        await failed.wait()
        # Those that fail together count as one.
        assert starts.count == 2 + 2 + 2

    _run(monkeypatch, test)
    assert "has ended with status 1 before it was ready; another is tried in" in caplog.text


def test_pauses_grow_and_begin_anew_after_a_success(monkeypatch, caplog):
    async def test(pool, starts, _) -> None:
        for expected in (2, 3, 4):
            (front_end,) = pool.front_ends.values()
            front_end.die()
            while starts.count < expected:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if expected == 3:
                pool.front_ends[0].become_ready()
                pool.front_ends[0].ready = pool.front_ends[0].was_ready = False

    _run(monkeypatch, test, workers=1, pauses_s=(0.01, 0.02, 0.04))
    pauses = [record.args[-1] for record in caplog.records]
    assert pauses == [0.01, 0.02, 0.01]


def test_connections_wait_where_the_last_front_end_breaks_over_one(monkeypatch, caplog):
    async def test(pool, starts, _) -> None:
        (first,) = pool.front_ends.values()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        pool._listeners.append(listener)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        first.breaks = True
        first.become_ready()
        while first.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        first.die()
        (second,) = pool.front_ends.values()
        second.become_ready()
        while not second.taken:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert (first.taken, second.taken) == (1, 1)
        pool.close()
        for client in clients:
            client.close()

    _run(monkeypatch, test, workers=1)
    assert "Exception" not in caplog.text


def test_nobody_is_started_while_the_service_ends(monkeypatch):
    async def test(pool, starts, failed) -> None:
        starts.error = _shortage()
        for front_end in [*pool.front_ends.values()]:
            front_end.become_ready()
            front_end.die()
        pool.stop()
        starts.error = None
        await asyncio.sleep(0.05)
        assert not pool.front_ends
        assert not failed.is_set()

    _run(monkeypatch, test)


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_restart_does_not_make_the_end_look_reached(monkeypatch, ends_well):
    """The last one has ended once before, and another came in its place."""

    async def test(pool, starts, _) -> None:
        pool.front_ends[0].die()
        while not pool.front_ends:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (front_end,) = pool.front_ends.values()
        front_end.stop = lambda: None
        pool.stop()
        ended = asyncio.ensure_future(pool.ended(5))
        await asyncio.sleep(0.02)
        assert not ended.done()
        front_end.exit_status = 0 if ends_well else 1
        front_end._on_gone(front_end)
        assert await ended is ends_well

    _run(monkeypatch, test, workers=1)
