"""Messages between two ends: order, descriptors, a reader that is slow, an end that dies."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

import pytest

from service.workers.channel import Channel, channel_pair
from service.workers.records import MAX_TEXT_BYTES, Kind, Record


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


class _Refusing(_Spy):
    """A socket that does not take its first messages."""

    def __init__(self, inner, number: int, times: int) -> None:
        super().__init__(inner, [])
        self._number, self._times = number, times

    def send(self, message: bytes) -> int:
        self._refuse()
        return super().send(message)

    def sendmsg(self, *message: object) -> int:
        self._refuse()
        return self._inner.sendmsg(*message)

    def _refuse(self) -> None:
        if self._times:
            self._times -= 1
            raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
def test_what_the_kernel_has_no_room_for_is_sent_later(number, caplog):
    async def test(first: _End, second: _End) -> None:
        first.channel._socket = _Refusing(first.channel._socket, number, 3)
        reader, writer = os.pipe()
        os.write(writer, b"x")
        os.close(writer)
        first.channel.send_descriptor(Record(Kind.CONNECTION, request=1), reader)
        first.channel.send(Record(Kind.HEALTH, request=2))
        await second.wait(2)
        assert [record.request for record in second.heard] == [1, 2]
        assert second.texts == [b"x"]
        assert not first.closed.is_set()

    before = len(os.listdir("/proc/self/fd"))
    _run(test)
    assert len(os.listdir("/proc/self/fd")) == before
    assert caplog.text.count("messages have to wait") == 1


def test_an_end_that_closes_while_messages_have_to_wait(caplog):
    async def test(first: _End, second: _End) -> None:
        first.channel._socket = _Refusing(first.channel._socket, errno.ENOBUFS, 1)
        first.channel.send_descriptor(Record(Kind.CONNECTION), os.pipe()[0])
        first.channel.close()
        await second.closed.wait()
        # Beyond the time of the next try.
        await asyncio.sleep(0.05)

    before = len(os.listdir("/proc/self/fd"))
    _run(test)
    # Only the writing end of the pipe.
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert all(record.levelno < logging.ERROR for record in caplog.records)


def test_a_message_that_cannot_be_sent_ends_the_channel_with_a_reason(caplog):
    async def test(first: _End, second: _End) -> None:
        first.channel._post(bytes(1 << 20), [])
        first.channel.send(Record(Kind.READY))
        await first.closed.wait()
        await second.closed.wait()
        assert not second.heard

    _run(test)
    assert "a message of 1048576 bytes and 0 descriptors cannot be sent" in caplog.text
    assert os.strerror(errno.EMSGSIZE) in caplog.text


def test_a_message_that_was_cut_ends_the_channel_with_a_reason(caplog):
    async def test(first: _End, second: _End) -> None:
        first.channel._post(bytes(150_000), [os.pipe()[0]])
        await second.closed.wait()
        await first.closed.wait()
        assert not second.heard

    before = len(os.listdir("/proc/self/fd"))
    _run(test)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert "a message must have at most 131072 bytes, had more" in caplog.text


def test_a_record_that_is_too_long_is_refused_before_it_is_said():
    async def test(first: _End, second: _End) -> None:
        text = bytes(MAX_TEXT_BYTES + 1)
        for say in (first.channel.send, first.channel.send_late):
            with pytest.raises(ValueError, match=r"at most 32768 bytes, that of REGION has 32769"):
                say(Record(Kind.REGION, text=text))
        first.channel.send(Record(Kind.REGION, request=3, text=text[1:]))
        await second.wait(1)
        assert [record.request for record in second.heard] == [3]

    _run(test)


def test_who_speaks_to_an_end_that_has_gone_hears_first_what_it_had_said(caplog):
    async def test(first: _End, second: _End) -> None:
        first.channel.send(Record(Kind.ADMIT, request=7))
        first.channel.close()
        second.channel.send(Record(Kind.GRANT))
        second.channel.flush()
        assert not second.closed.is_set()
        await second.closed.wait()
        assert [record.request for record in second.heard] == [7]

    _run(test)
    assert not caplog.records


def test_the_other_end_hears_what_was_said_before_the_end():
    async def test(first: _End, second: _End) -> None:
        first.channel.send(Record(Kind.ADMIT, request=7))
        first.channel.close()
        await second.closed.wait()
        assert [record.request for record in second.heard] == [7]
        second.channel.send(Record(Kind.GRANT))

    _run(test)
