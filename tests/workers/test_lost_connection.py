"""A connection whose descriptor did not arrive, because the front end may open no more."""

from __future__ import annotations

from service.config import Settings
from service.errors import outcomes
from service.workers.hello import Hello
from service.workers.memory import SharedMemory, create_memory
from service.workers.records import Kind, Record
from service.workers.remote import RemoteFront
from tests.engines import spec

ARENA_BYTES = 1 << 20


def test_it_is_counted_as_closed_and_said_once(caplog):
    memory = SharedMemory(create_memory(1, ARENA_BYTES, outcomes()), 1, ARENA_BYTES, outcomes())
    hello = Hello(
        0, ARENA_BYTES, Settings(workers=1), spec(), "fake", "none", "", cuda_shared_memory=False
    )
    taken: list[int] = []
    front = RemoteFront(
        hello,
        memory,
        on_dead=lambda: None,
        on_stop=lambda: None,
        on_connection=taken.append,
    )
    for descriptors in ([], [7], []):
        front.hear(Record(Kind.CONNECTION), descriptors)
    assert taken == [7]
    assert front.counts.connections_closed == 2
    assert caplog.text.count("raise the limit of open files") == 1
