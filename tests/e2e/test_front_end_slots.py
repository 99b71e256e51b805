"""Memory that front ends and the engine's process share: who uses it, and that it comes back."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from service.errors import EngineDead
from service.workers.memory import address
from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine, expected
from tests.routes.bodies import LARGE, SMALL, post, rows
from tests.servers import ServerThread, wait_until

pytestmark = pytest.mark.e2e


def test_a_failed_bundle_of_long_answers_leaves_no_slot_behind():
    engine = FakeEngine()
    engine.fail_marker = marker = 7777.0
    engine.gate.clear()
    long, guilty = rows(SMALL // 2), rows(1)
    guilty[0, 0] = marker
    with ServerThread(engine, workers=1) as thread, ExitStack() as stack:
        sent = [(rows(1), 200), (rows(1), 200), (long, 200), (guilty, 500), (long, 200)]
        connections = [stack.enter_context(RawConnection(thread.url)) for _ in sent]
        for index, (connection, (x, _)) in enumerate(zip(connections, sent, strict=True)):
            connection.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
            # The first two have the rooms, the others gather for one bundle.
            wait_until(lambda: _requests(thread) == index + 1)  # noqa: B023 - waited for here
        engine.gate.set()
        for connection, (x, status) in zip(connections, sent, strict=True):
            answer = connection.read()
            assert answer.status == status
            assert status != 200 or answer.body == expected(x, 0).tobytes()
        wait_until(lambda: not thread.in_progress)


def _requests(thread: ServerThread) -> float:
    """Requests that wait, or are with the engine, which takes one batch at a time."""
    return Scrape(thread.url)("mlp_queue_requests") + sum(
        len(batch.segments) for batch in thread.engine.batches
    )


class PinningEngine(FakeEngine):
    """Remembers which memory it was told to pin, and to unpin once it is closed."""

    direct_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[memoryview] = []
        self.unpinned: list[memoryview] = []

    def pin(self, memory: memoryview) -> bool:
        self.pinned.append(memory)
        return True

    def unpin(self, memory: memoryview) -> None:
        assert self.closed, "unpinned while it may be in use"
        self.unpinned.append(memory)


def test_an_engine_that_can_pins_all_slots_and_reads_and_writes_in_them():
    engine = PinningEngine()
    with ServerThread(engine, workers=1) as thread:
        wait_until(lambda: len(engine.pinned) == 3)
        bodies, answers, rooms = engine.pinned
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            # Many rows travel by themselves, two in a room.
            for count, parts in ((LARGE, (bodies, answers)), (2, (rooms, rooms))):
                assert post(client, rows(count)).status_code == 200
                (segment,) = engine.batches[-1].segments
                for view, part in zip((segment.input, segment.output), parts, strict=True):
                    assert view.obj is part.obj
                    assert 0 <= address(view) - address(part) < part.nbytes
    # What stays page-locked while the process maps something else there stops CUDA allocating.
    assert engine.unpinned == engine.pinned


def test_a_device_that_does_not_unpin_spoils_no_stop(caplog: pytest.LogCaptureFixture):
    class Stubborn(PinningEngine):
        def unpin(self, memory: memoryview) -> None:
            super().unpin(memory)
            raise RuntimeError("CUDA error")

    engine = Stubborn()
    with ServerThread(engine, workers=1) as thread:
        wait_until(lambda: len(engine.pinned) == 3)
    assert engine.unpinned == engine.pinned
    assert thread.server.exit_status == 0
    assert "bytes of slots could not be unpinned: CUDA error" in caplog.text


def test_slots_stay_pinned_while_a_dead_engine_may_use_them():
    engine = PinningEngine()
    with ServerThread(engine, workers=1) as thread:
        wait_until(lambda: len(engine.pinned) == 3)
        engine.fail_next = EngineDead("device lost")
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            assert post(client, rows(2)).status_code == 500
    assert not engine.unpinned
