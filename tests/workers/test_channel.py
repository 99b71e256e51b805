"""Messages between two ends: order, descriptors, a reader that is slow, an end that dies."""

from __future__ import annotations

import asyncio
import os

from service.workers.channel import Channel, channel_pair
from service.workers.records import Kind, Record


class _End:
    """One end and what it has heard."""

    def __init__(self, end) -> None:
        self.heard: list[Record] = []
        self.texts: list[bytes] = []
        self.closed = asyncio.Event()
        self.channel = Channel(end, self._hear, self.closed.set)

    def _hear(self, record: Record, descriptors: list[int]) -> None:
        self.heard.append(record)
        if record.kind == Kind.CONNECTION:
            descriptor = descriptors.pop()
            self.texts.append(os.read(descriptor, 100))
            os.close(descriptor)

    async def wait(self, records: int) -> None:
        while len(self.heard) < records:  # noqa: ASYNC110 - an event per record would be no less
            await asyncio.sleep(0.001)


def _run(test) -> None:
    async def both() -> None:
        first, second = map(_End, channel_pair())
        await asyncio.wait_for(test(first, second), 20)
        first.channel.close()
        second.channel.close()

    asyncio.run(both())


def test_records_arrive_in_order_those_of_a_turn_in_one_message():
    async def test(first: _End, second: _End) -> None:
        sent = []
        first.channel._socket = _Spy(first.channel._socket, sent)
        for number in range(100):
            first.channel.send(Record(Kind.ADMIT, request=number))
        await second.wait(100)
        assert [record.request for record in second.heard] == list(range(100))
        assert len(sent) == 1

    _run(test)


def test_what_can_wait_goes_with_the_next_message_or_soon():
    async def test(first: _End, second: _End) -> None:
        sent = []
        first.channel._socket = _Spy(first.channel._socket, sent)
        first.channel.send_late(Record(Kind.RELEASE, request=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not sent
        first.channel.send(Record(Kind.ADMIT, request=2))
        await second.wait(2)
        assert [record.request for record in second.heard] == [1, 2]
        first.channel.send_late(Record(Kind.RELEASE, request=3))
        first.channel.send_late(Record(Kind.RELEASE, request=4))
        await second.wait(4)
        assert len(sent) == 2

    _run(test)


class _Spy:
    """A socket whose messages are looked at."""

    def __init__(self, inner, sent) -> None:
        self._inner, self._sent = inner, sent

    def send(self, message: bytes) -> int:
        self._sent.append(len(message))
        return self._inner.send(message)

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


def test_a_reader_that_is_late_loses_nothing():
    async def test(first: _End, second: _End) -> None:
        text = bytes(30_000)
        for number in range(300):
            first.channel.send(Record(Kind.TEXT, request=number, text=text))
        assert first.channel._waiting, "the kernel took 9 MB at once"
        await second.wait(300)
        assert [record.request for record in second.heard] == list(range(300))
        assert all(record.text == text for record in second.heard)
        second.channel.send(Record(Kind.READY))
        await first.wait(1)

    _run(test)


def test_a_descriptor_goes_along_and_is_closed_here():
    async def test(first: _End, second: _End) -> None:
        for number in range(5):
            reader, writer = os.pipe()
            os.write(writer, b"%d" % number)
            os.close(writer)
            first.channel.send(Record(Kind.HEALTH, request=number))
            first.channel.send_descriptor(Record(Kind.CONNECTION), reader)
        await second.wait(10)
        assert second.texts == [b"0", b"1", b"2", b"3", b"4"]
        assert [r.kind for r in second.heard] == [Kind.HEALTH, Kind.CONNECTION] * 5

    before = len(os.listdir("/proc/self/fd"))
    _run(test)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_nobody_takes_is_closed():
    async def test(first: _End, second: _End) -> None:
        reader, writer = os.pipe()
        os.close(writer)
        # A record that takes none.
        first.channel.send_descriptor(Record(Kind.READY), reader)
        await second.wait(1)
        first.channel.close()
        first.channel.send_descriptor(Record(Kind.CONNECTION), os.pipe()[0])

    before = len(os.listdir("/proc/self/fd"))
    _run(test)
    # Only the writing end of the last pipe, which was never told of.
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_the_other_end_hears_what_was_said_before_the_end():
    async def test(first: _End, second: _End) -> None:
        first.channel.send(Record(Kind.ADMIT, request=7))
        first.channel.close()
        await second.closed.wait()
        assert [record.request for record in second.heard] == [7]
        second.channel.send(Record(Kind.GRANT))

    _run(test)
