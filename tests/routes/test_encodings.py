"""Content-Encoding of requests and Accept-Encoding of answers."""

from __future__ import annotations

import gzip
import importlib
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from service.wire.compression import Inflation
from tests.engines import HIDDEN, FakeEngine, expected
from tests.routes.bodies import JSON, NPY, RAW, decode, encode, post, rows, v2_body, v2_decode
from tests.servers import ServerThread, wait_until

_COMPRESS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("encoding", list(_COMPRESS))
@pytest.mark.parametrize("media_type", [RAW, NPY, JSON])
def test_compressed_request_is_read(service, media_type, encoding):
    x = rows(40)
    body, headers = encode(x, media_type)
    answer = service.client.post(
        "/mlp",
        content=_COMPRESS[encoding](body),
        headers={**headers, "content-encoding": encoding},
    )
    np.testing.assert_array_equal(decode(answer), expected(x, 0))


def test_v2_header_length_counts_decompressed_bytes(service):
    x = rows(40)
    body, headers = v2_body(x)
    answer = service.client.post(
        "/v2/models/tiny/infer",
        content=gzip.compress(body),
        headers={**headers, "content-encoding": "gzip"},
    )
    np.testing.assert_array_equal(v2_decode(answer), expected(x, 0))


def test_a_compressed_body_is_refused_before_more_of_it_is_out_than_may_wait(monkeypatch):
    """24 bodies of 64 KB took half a gigabyte before they were refused."""
    begun: list[Inflation] = []

    class Seen(Inflation):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            begun.append(self)

    monkeypatch.setattr("service.routes.intake.Inflation", Seen)
    engine = FakeEngine()
    engine.gate.clear()
    limits = {"max_body_bytes": 4 << 20, "max_queue_bytes": 4 << 20, "max_batch_tokens": 1 << 16}
    with ServerThread(engine, **limits) as server, ThreadPoolExecutor(2) as pool:
        waiting = []
        for number in range(2):
            waiting.append(pool.submit(_post_fp32, server.url, bytes(3 << 20)))
            wait_until(lambda: server.runtime.admission.requests == number)  # noqa: B023 - at once
            wait_until(lambda: len(engine.batches) == 1)
        body = gzip.compress(bytes(4 << 20))
        refused = _post_fp32(server.url, body, **{"content-encoding": "gzip"})
        assert refused.status_code == 429
        assert len(begun[0].grown) <= 1 << 20
        engine.gate.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert _post_fp32(server.url, body, **{"content-encoding": "gzip"}).status_code == 200
        assert server.runtime.admission.bytes == 0


def _post_fp32(url: str, body: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": RAW, "x-tensor-dtype": "fp32", **headers}
    return httpx.post(f"{url}/mlp", content=body, headers=headers, timeout=30)


def test_small_compressed_requests_do_not_fill_the_queue():
    """Each held room for the largest body there may be, so that the ninth at once got a 429."""
    body, headers = encode(np.zeros((2, HIDDEN), "float32"), RAW)
    headers["content-encoding"] = "gzip"
    with ServerThread(FakeEngine()) as thread, ThreadPoolExecutor(32) as pool:

        def run(_: int) -> set[int]:
            with httpx.Client(base_url=thread.url, timeout=30) as client:
                return {
                    client.post("/mlp", content=gzip.compress(body), headers=headers).status_code
                    for _ in range(10)
                }

        assert set().union(*pool.map(run, range(32))) == {200}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("media_type", [RAW, NPY, JSON])
def test_answer_is_compressed_for_who_asks_for_one_coding(service, media_type, encoding):
    x = rows(40)
    answer = post(service.client, x, media_type, accept_encoding=encoding)
    assert answer.headers["content-encoding"] == encoding
    # httpx has undone it.
    np.testing.assert_array_equal(decode(answer), expected(x, 0))


@pytest.mark.parametrize(
    "value", ["gzip, deflate, br", "gzip;q=1.0, *;q=0.5", "identity", "br", ""]
)
def test_answer_is_not_compressed_by_default(service, value):
    """aiohttp asks for `gzip, deflate, br` by itself; a tensor would take 141 ms per 4 MiB."""
    answer = post(service.client, rows(40), accept_encoding=value)
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no gzip at all", "must be one gzip member"),
        (gzip.compress(bytes(640))[:-3], "ends before the stream does"),
        (gzip.compress(bytes(640)) + b"rest", "4 bytes follow it"),
        (b"", "ends before the stream does"),
    ],
)
def test_broken_compression_is_400(service, body, words):
    answer = service.client.post("/mlp", content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_bomb_is_refused_at_the_limit():
    bomb = gzip.compress(bytes(32 << 20))
    with ServerThread(FakeEngine(), max_body_bytes=1 << 20) as thread:
        answer = httpx.post(
            f"{thread.url}/mlp", content=bomb, headers={"content-encoding": "gzip"}, timeout=30
        )
    assert len(bomb) < 1 << 20
    assert answer.status_code == 413
    assert "1048576" in answer.json()["error"]
    assert "MLP_MAX_BODY_BYTES" in answer.json()["error"]


def _gzip_answer(client: httpx.Client, x: np.ndarray) -> np.ndarray:
    return decode(post(client, x, accept_encoding="gzip"))


def _json_answer(client: httpx.Client, x: np.ndarray) -> np.ndarray:
    return decode(post(client, x, accept=JSON))


def _v2_json_answer(client: httpx.Client, x: np.ndarray) -> np.ndarray:
    body, headers = v2_body(x, binary_output=False)
    return v2_decode(client.post("/v2/models/tiny/infer", content=body, headers=headers))


def _v2_json_request(client: httpx.Client, x: np.ndarray) -> np.ndarray:
    body, _ = v2_body(x, binary=False)
    # The length may be given although it says nothing.
    headers = {"inference-header-content-length": str(len(body))}
    return v2_decode(client.post("/v2/models/tiny/infer", content=body, headers=headers))


@pytest.mark.parametrize(
    ("codec", "ask"),
    [
        ("service.routes.replies.deflate", _gzip_answer),
        ("service.routes.mlp.encode_json", _json_answer),
        ("service.routes.inference_v2.encode_v2", _v2_json_answer),
        ("service.routes.inference_v2.decode_v2", _v2_json_request),
    ],
)
def test_slow_codecs_stay_off_the_event_loop(monkeypatch, codec, ask):
    """20: parsing, printing or compressing megabytes there holds up everybody, also the probes."""
    module, _, name = codec.rpartition(".")
    real = getattr(importlib.import_module(module), name)
    ran_in: list[threading.Thread] = []

    def spy(*args: object) -> object:
        ran_in.append(threading.current_thread())
        return real(*args)

    monkeypatch.setattr(codec, spy)
    x = rows(4000)
    with ServerThread(FakeEngine()) as thread, httpx.Client(base_url=thread.url) as client:
        np.testing.assert_array_equal(ask(client, x), expected(x, 0))
    (worker,) = ran_in
    assert worker is not thread.thread
