"""Bodies whose length no header tells: reserved for as they grow, refused when there is no room."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.engines import HIDDEN, FakeEngine, expected
from tests.routes.bodies import RAW, decode, rows
from tests.servers import ServerThread, wait_until

_HEADERS = {"content-type": RAW, "x-tensor-dtype": "fp32"}


def _pieces(body: bytes, size: int = 10_000) -> Iterator[bytes]:
    """httpx sends what it gets from an iterator as chunks."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


def _post(url: str, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/mlp", content=_pieces(body), headers={**_HEADERS, **headers})


@pytest.mark.parametrize("tokens", [0, 1, 1000, 8000])
def test_a_body_that_grows_beyond_its_first_room_is_answered(service, tokens):
    x = rows(tokens)
    np.testing.assert_array_equal(decode(_post(service.url, x.tobytes())), expected(x, 0))
    assert service.runtime.admission.bytes == 0


def test_a_compressed_body_of_unknown_length_is_answered(service):
    x = rows(3000)
    answer = _post(service.url, gzip.compress(x.tobytes()), **{"content-encoding": "gzip"})
    np.testing.assert_array_equal(decode(answer), expected(x, 0))
    assert service.runtime.admission.bytes == 0


def test_many_small_ones_at_once_are_all_answered(service):
    """Each used to reserve the largest body and a whole batch: more than 8 at once got 429."""
    x = rows(2)

    def run(_: int) -> set[int]:
        return {_post(service.url, x.tobytes()).status_code for _ in range(5)}

    with ThreadPoolExecutor(24) as pool:
        assert set().union(*pool.map(run, range(24))) == {200}


def test_one_that_outgrows_the_queue_is_refused_and_leaves_nothing_behind():
    row_bytes = 4 * HIDDEN
    limits = {"max_body_bytes": 1 << 20, "max_queue_bytes": 1 << 20}
    engine = FakeEngine()
    with ServerThread(engine, **limits) as server:
        engine.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(_post, server.url, rows(1).tobytes())
            assert engine.started.acquire(timeout=10)
            waiting = pool.submit(_post, server.url, rows(7000).tobytes())
            wait_until(lambda: server.runtime.admission.bytes == 7000 * row_bytes)
            refused = _post(server.url, rows(12000).tobytes())
            assert refused.status_code == 429
            assert "max_queue_bytes" in refused.json()["error"]
            assert server.runtime.admission.bytes == 7000 * row_bytes
            engine.gate.set()
            assert running.result(10).status_code == waiting.result(10).status_code == 200
        assert server.runtime.admission.requests == server.runtime.admission.bytes == 0
