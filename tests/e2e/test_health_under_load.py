"""20: under load /health takes 30 s, because the event loop is busy, and probes kill a good pod."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.e2e.scrape import Scrape, wait_at_rest
from tests.servers import ServerProcess, get

pytestmark = pytest.mark.e2e

_BODY_BYTES = 4 << 20
_SECONDS = 4.0


def test_health_is_answered_while_64_clients_send_4_mib_each(tmp_path):
    with ServerProcess(
        tmp_path / "log",
        command=("-m", "tests.e2e.fake_service", "0"),
        max_batch_tokens=_BODY_BYTES // 64,
        max_queue_tokens=64 * _BODY_BYTES // 64,
    ) as server:
        arguments = [server.url, "32", str(_SECONDS), str(_BODY_BYTES)]
        floods = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.flood", *arguments], stdout=subprocess.PIPE
            )
            for _ in range(2)
        ]
        latencies = []
        while any(flood.poll() is None for flood in floods):
            began = time.monotonic()
            # A new connection each time, as a kubelet makes it.
            assert get(server.url, "/v2/health/live", 10)[0] == 200
            latencies.append(time.monotonic() - began)
            time.sleep(0.005)
        answered = sum(int(flood.communicate()[0]) for flood in floods)
        assert [flood.returncode for flood in floods] == [0, 0]
        assert answered >= 64
        wait_at_rest(server.url)
        assert Scrape(server.url).outcomes("mlp") == {"ok": answered}
    latencies.sort()
    assert len(latencies) > 50
    assert latencies[int(0.99 * len(latencies))] < 0.25, latencies[-5:]
