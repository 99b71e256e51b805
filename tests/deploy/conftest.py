"""One Prometheus that has watched the real service under load, for every test that asks it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.deploy.gpu_exporter import GpuExporter
from tests.deploy.prometheus import Prometheus, Series
from tests.deploy.traffic import SETTINGS, load, misbehave
from tests.servers import ServerProcess


@dataclass(frozen=True)
class Watched:
    """What was seen, and when.

    Attributes:
        service: The label `instance` of the real service, which has no GPU here.
        gpu: The same service's, with the series of a GPU added.
        start, end: Of the traffic, in Unix seconds.
    """

    prometheus: Prometheus
    url: str
    service: str
    gpu: str
    start: float
    end: float

    def series(self, expr: str, instance: str) -> list[tuple[Series, list[float]]]:
        """A query of the dashboard, as Grafana sends it for one instance."""
        chosen = expr.replace("$instance", re.escape(instance).replace("\\", "\\\\"))
        return self.prometheus.over(chosen.replace("$__rate_interval", "10s"), self.start, self.end)


# Ended with the tests of this folder: what a scrape that is cut says is no output of other tests.
@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        process = ServerProcess(folder / "service.log", device="cpu", **SETTINGS)
    with process as server, GpuExporter(server.url) as gpu:
        service = server.url.removeprefix("http://")
        with Prometheus(folder, [service, gpu.address]) as prometheus:
            start = time.time()
            misbehave(server.url)
            load(server.url)
            # Two more scrapes and evaluations, so that all of it is in.
            time.sleep(2.5)
            yield Watched(prometheus, server.url, service, gpu.address, start, time.time())
