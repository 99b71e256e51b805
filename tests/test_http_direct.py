"""Which bodies take the short way; that it is a right one, tests/e2e/test_large_bodies.py says."""

from __future__ import annotations

from service.http_direct import DirectHttpProtocol, Reader
from tests.e2e.raw_http import RawConnection, chunked, head
from tests.engines import FakeEngine, expected
from tests.routes.bodies import rows
from tests.servers import ServerThread

# 3.84 MB.
TOKENS = 60_000


def test_the_short_way_is_taken(monkeypatch):
    taken = []
    real = DirectHttpProtocol.receive_into

    def spy(self, view):
        taken.append(len(view))
        return real(self, view)

    monkeypatch.setattr(DirectHttpProtocol, "receive_into", spy)
    with (
        ServerThread(FakeEngine(), max_batch_tokens=TOKENS) as thread,
        RawConnection(thread.url) as connection,
    ):
        for count in (1, TOKENS, 1000):
            x = rows(count)
            connection.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
            assert connection.read().body == expected(x, 0).tobytes()
    assert taken == [rows(TOKENS).nbytes]


def test_what_comes_of_a_large_body_is_read_into_its_slot_from_the_second_one_on(monkeypatch):
    """The parser gets little of it, and bodies that go through it in one piece."""
    parsed = []
    real = Reader.buffer_updated

    def spy(self, nbytes):
        if self._body is None:
            parsed.append(nbytes)
        real(self, nbytes)

    monkeypatch.setattr(Reader, "buffer_updated", spy)
    large, small = rows(TOKENS), rows(2000)
    with (
        ServerThread(FakeEngine(), max_batch_tokens=TOKENS) as thread,
        RawConnection(thread.url) as connection,
    ):

        def ask(x) -> int:
            parsed.clear()
            connection.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
            assert connection.read().body == expected(x, 0).tobytes()
            return max(parsed)

        ask(large)
        assert ask(large) <= 16 << 10
        # In chunks it goes through the parser, all of it.
        parsed.clear()
        connection.send(head("/mlp", Transfer_Encoding="chunked", x_tensor_dtype="fp32"))
        connection.send(chunked(large.tobytes(), 256 << 10))
        assert connection.read().body == expected(large, 0).tobytes()
        assert max(parsed) > 16 << 10
        ask(large)
        ask(small)
        assert small.nbytes > 64 << 10
        # In how many pieces it comes is the kernel's choice; but none is short for want of room.
        assert ask(small) > 16 << 10
