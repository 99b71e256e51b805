"""Requests of every kind that the dashboard tells apart: answered, malformed, refused, too late."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from tests.e2e.scrape import Scrape
from tests.servers import wait_until

HIDDEN = 896
# With these, one client with full batches leaves room for nobody else.
SETTINGS = {"max_batch_tokens": 64, "max_queue_tokens": 64, "client_shared_memory": True}
_V2 = {"name": "x", "shape": [1, HIDDEN], "datatype": "FP32", "data": [0.5] * HIDDEN}


def post(url: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
    """The status."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("POST", path, body, dict(headers or {}))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def rows(count: int) -> bytes:
    return bytes(2 * HIDDEN * count)


def misbehave(url: str) -> None:
    """Until the service has refused, expired and rejected requests; v2 gets an answer."""
    assert post(url, "/v2/models/qwen2.5-0.5b/infer", json.dumps({"inputs": [_V2]}).encode()) == 200
    assert post(url, "/mlp", b"x") == 400
    over = threading.Event()

    def flood(count: int, headers: Mapping[str, str]) -> None:
        while not over.is_set():
            # A refusal may come, and close the connection, before the body has been sent.
            with contextlib.suppress(ConnectionError):
                post(url, "/mlp", rows(count), headers)

    threads = [threading.Thread(target=flood, args=(64, {})) for _ in range(4)]
    late = {"X-Request-Timeout-Ms": "1"}
    threads += [threading.Thread(target=flood, args=(1, late)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        # Long enough for several scrapes to find a queue.
        time.sleep(3)
        wait_until(lambda: {"queue_full", "deadline"} <= set(Scrape(url).outcomes("mlp")), 20)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def load(url: str) -> None:
    """`tilemlp load`, which checks every answer, over HTTP and over shared memory."""
    command = ["load", "--url", url, "--connections", "4", "--rows", "1:0.7,8:0.3", "--quiet"]
    for transport, duration_s in (("http", "5"), ("shm", "4")):
        times = ["--duration-s", duration_s, "--warm-up-s", "1"]
        subprocess.run(
            [sys.executable, "-m", "service", *command, "--transport", transport, *times],
            check=True,
            capture_output=True,
        )
