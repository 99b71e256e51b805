"""Every outcome of `mlp_requests_total` can be reached, and counts each request once."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import httpx
import pytest

from service.errors import EngineDead, EngineError, outcomes
from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import HIDDEN, FakeEngine
from tests.routes.bodies import RAW, encode, rows, v2_body
from tests.servers import ServerThread, wait_until

_KEY = "a-long-key"
_PATHS = {"mlp": "/mlp", "v2": "/v2/models/tiny/infer"}


class _Client:
    """Sends good requests of one API, or such as differ from them by a header."""

    def __init__(self, api: str, thread: ServerThread, engine: FakeEngine) -> None:
        self.path = _PATHS[api]
        self.body, self.headers = v2_body(rows(2)) if api == "v2" else encode(rows(2), RAW)
        self.headers["authorization"] = f"Bearer {_KEY}"
        self.thread, self.engine = thread, engine

    def send(self, path: str = "", content: bytes | None = None, **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            self.thread.url + (path or self.path),
            content=self.body if content is None else content,
            headers={**self.headers, **given},
            timeout=10,
        )

    def open(self, length: int, sent: bytes) -> RawConnection:
        connection = RawConnection(self.thread.url)
        headers = {**self.headers, "content-type": RAW}
        headers.pop("x-tensor-shape", None)
        connection.send(head(self.path, length=length, **headers) + sent)
        return connection

    def start_running(self) -> RawConnection:
        before = len(self.engine.batches)
        connection = self.open(len(self.body), self.body)
        wait_until(lambda: len(self.engine.batches) > before)
        return connection


def _cancelled(client: _Client) -> None:
    client.engine.gate.clear()
    connection = client.start_running()
    connection.close()
    wait_until(lambda: not client.thread.in_progress)
    client.engine.gate.set()


def _deadline(client: _Client) -> int:
    client.engine.gate.clear()
    with client.start_running() as first:
        if client.path == "/mlp":
            answer = client.send(x_request_timeout_ms="50")
        else:
            body, headers = v2_body(rows(2), parameters={"timeout": 50_000})
            answer = client.send(content=body, **headers)
        client.engine.gate.set()
        assert first.read().status == 200
    return answer.status_code


def _receive_timeout(client: _Client) -> int:
    with client.open(len(client.body), client.body[:-1]) as connection:
        return connection.read().status


def _queue_full(client: _Client) -> int:
    # As many rows as the queue may hold, admitted but never sent.
    length = 64 * HIDDEN * 4
    with client.open(length, b"") as first, client.open(length, b"") as second:
        status = second.read().status
        assert first.read().status == 408
    return status


def _with_fault(fault: BaseException) -> Callable[[_Client], int]:
    def send(client: _Client) -> int:
        client.engine.fail_next = fault
        return client.send().status_code

    return send


def _unavailable(client: _Client) -> int:
    health = client.thread.runtime.health
    health.self_test(EngineError("layer 0 is off"))
    answer = client.send()
    health.self_test(None)
    assert "layer 0 is off" in answer.json()["error"]
    return answer.status_code


def _not_acceptable(client: _Client) -> int | None:
    return client.send(accept="text/html").status_code if client.path == "/mlp" else None


def _internal(client: _Client) -> int:
    health = client.thread.runtime.health
    health.require_ready = lambda: 1 // 0
    answer = client.send()
    del health.require_ready
    return answer.status_code


_WAYS: dict[str, tuple[int | None, Callable[[_Client], int | None]]] = {
    "ok": (200, lambda client: client.send().status_code),
    "invalid": (400, lambda client: client.send(content=b"odd").status_code),
    "unauthorized": (401, lambda client: client.send(authorization="Bearer x").status_code),
    "not_found": (404, lambda client: client.send(path=_unknown(client)).status_code),
    "not_acceptable": (406, _not_acceptable),
    "receive_timeout": (408, _receive_timeout),
    "too_large": (
        413,
        lambda client: (
            client.send(content=gzip.compress(bytes(1 << 20)), content_encoding="gzip").status_code
        ),
    ),
    "unsupported_type": (415, lambda client: client.send(content_encoding="br").status_code),
    "queue_full": (429, _queue_full),
    "cancelled": (None, _cancelled),
    "engine_error": (500, _with_fault(RuntimeError("one batch"))),
    "internal": (500, _internal),
    "unavailable": (503, _unavailable),
    "deadline": (504, _deadline),
    # Last, because it ends the service.
    "engine_dead": (500, _with_fault(EngineDead("illegal memory access"))),
}
# What a way causes besides the outcome it is for.
_BESIDES = {"deadline": "ok", "queue_full": "receive_timeout"}


def _unknown(client: _Client) -> str:
    return "/mlp?model=other" if client.path == "/mlp" else "/v2/models/other/infer"


def test_the_table_is_complete():
    assert _WAYS.keys() == set(outcomes())


@pytest.mark.parametrize("api", list(_PATHS))
def test_every_outcome_is_counted_once(api):
    engine = FakeEngine()
    thread = ServerThread(
        engine,
        api_key=_KEY,
        receive_timeout_s=0.3,
        max_queue_tokens=100,
        max_batch_tokens=100,
        max_body_bytes=64 << 10,
    )
    counted: dict[str, int] = {}
    with thread:
        client = _Client(api, thread, engine)
        for outcome, (status, way) in _WAYS.items():
            found = way(client)
            if found is None and outcome != "cancelled":
                continue
            assert found == status, outcome
            for name in (outcome, _BESIDES.get(outcome)):
                if name is not None:
                    counted[name] = counted.get(name, 0) + 1
            assert Scrape(thread.url).outcomes(api) == counted, outcome
        assert thread.wait_exit() == 1
    # Accept says nothing on the protocol's wire.
    assert counted.keys() == set(outcomes()) - ({"not_acceptable"} if api == "v2" else set())
