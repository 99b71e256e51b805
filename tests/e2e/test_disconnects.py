"""8 and 10: clients that leave at any moment, through the whole application.

Cancelled requests left a batched deployment stuck for ever, and middlewares can hide that a client
has left at all.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine, expected
from tests.routes.bodies import decode, post, rows, v2_body
from tests.servers import ServerThread, wait_until

pytestmark = pytest.mark.usefixtures("workers")

_TOKENS = 500


def _request(api: str, seed: int) -> bytes:
    if api == "mlp":
        body = rows(_TOKENS, seed).tobytes()
        return head("/mlp", length=len(body), x_tensor_dtype="fp32") + body
    body, headers = v2_body(rows(_TOKENS, seed))
    return head("/v2/models/tiny/infer", length=len(body), **headers) + body


def _reset(connection: RawConnection) -> None:
    """Close with a reset instead of a good-bye."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _visit(url: str, seed: int) -> str:
    """One client: stays for its answer, or leaves after a random part of its request or wait."""
    luck = random.Random(seed)
    data = _request(luck.choice(["mlp", "v2"]), seed)
    connection = RawConnection(url, timeout_s=60)
    try:
        if seed % 2:
            connection.send(data)
            return "right" if connection.read().status == 200 else "wrong"
        part = luck.choice([1, luck.randrange(len(data)), len(data) - 1, len(data), len(data)])
        connection.send(data[:part])
        # While it uploads, waits in the queue or is computed.
        time.sleep(luck.random() * 0.1)
        if luck.random() < 0.5:
            _reset(connection)
        return "left"
    finally:
        connection.close()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_clients_that_leave_harm_nobody(concurrency):
    engine = FakeEngine(run_s=0.02, concurrency=concurrency)
    thread = ServerThread(engine, max_batch_tokens=4 * _TOKENS)
    with thread, ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda seed: _visit(thread.url, seed), range(200)))
        assert found.count("right") == found.count("left") == 100
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            for seed in range(50):
                np.testing.assert_array_equal(
                    decode(post(client, rows(3, seed))), expected(rows(3, seed), 0)
                )
        wait_at_rest(thread.url)
        wait_until(lambda: not thread.in_progress)
        scrape = Scrape(thread.url)
    counted = [scrape.outcomes(api) for api in ("mlp", "v2")]
    assert {outcome for found in counted for outcome in found} == {"ok", "cancelled"}
    # Who left before the end of the headers was no request; who left at the very end may have
    # been answered.
    assert 150 <= sum(found["ok"] for found in counted) < 250
    assert sum(found["cancelled"] for found in counted) > 20


def test_nothing_is_computed_for_who_left_the_queue():
    """9: work for clients that left delays those who stayed."""
    engine = FakeEngine()
    engine.gate.clear()
    with ServerThread(engine) as thread, RawConnection(thread.url) as first:
        first.send(_request("mlp", 0))
        wait_until(lambda: len(engine.batches) == 1)
        leavers = [RawConnection(thread.url) for _ in range(10)]
        for seed, leaver in enumerate(leavers):
            leaver.send(_request("mlp" if seed % 2 else "v2", seed))
        wait_until(lambda: Scrape(thread.url)("mlp_queue_requests") == 10)
        for leaver in leavers:
            leaver.close()
        # Noticed while the engine is still busy with another's batch.
        wait_at_rest(thread.url)
        engine.gate.set()
        assert first.read().status == 200
        scrape = Scrape(thread.url)
    assert len(engine.batches) == 1
    assert scrape.outcomes("mlp") == {"ok": 1, "cancelled": 5}
    assert scrape.outcomes("v2") == {"cancelled": 5}


def test_client_that_closes_only_its_sending_side_is_taken_for_gone():
    """Half-closed is closed: servers of this kind cannot tell; it must not be stuck, or crash."""
    with ServerThread(FakeEngine(run_s=0.1)) as thread:
        with RawConnection(thread.url) as connection:
            connection.send(_request("mlp", 0))
            connection.socket.shutdown(socket.SHUT_WR)
            assert connection.is_closed()
        wait_at_rest(thread.url)
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"cancelled": 1})


def test_pipelined_requests_are_answered_in_order():
    """Two requests in one packet: looking out for a client that leaves must not eat the second."""
    with ServerThread(FakeEngine(run_s=0.05)) as thread, RawConnection(thread.url) as connection:
        x = [rows(n, n) for n in (2, 3, 4)]
        connection.send(
            b"".join(
                head("/mlp", length=one.nbytes, x_tensor_dtype="fp32") + one.tobytes() for one in x
            )
        )
        for one in x:
            assert connection.read().body == expected(one, 0).tobytes()
