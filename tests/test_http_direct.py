"""Which bodies take the short way; that it is a right one, tests/e2e/test_large_bodies.py says."""

from __future__ import annotations

from service.http_direct import DirectHttpProtocol
from tests.e2e.raw_http import RawConnection, head
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
