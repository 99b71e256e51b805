"""`tilemlp load --transport shm` against the real service around an engine of known arithmetic."""

from __future__ import annotations

import os

import numpy as np
import pytest

from service.engine.base import DType, Output
from service.errors import StartError
from service.load.options import LoadOptions, Transport
from service.load.render import render_report
from service.load.report import LoadReport
from service.load.run import run_load
from tests.engines import NUMPY_DTYPES, FakeEngine
from tests.servers import ServerThread


def objects() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith("tilemlp-load")]


def measure(url: str, **changes: object) -> LoadReport:
    given = {
        "connections": 4,
        "duration_s": 0.2,
        "warm_up_s": 0.0,
        "timeout_s": 5.0,
        "dtype": DType.FP32,
        "transport": Transport.SHM,
        "quiet": True,
        **changes,
    }
    return run_load(LoadOptions(url=url, **given))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"output": Output.GATED, "dtype": DType.FP16, "layer": 0},
        {"rows": ((1, 1.0), (300, 1.0), (4000, 0.1))},
        {"rate_per_s": 200.0},
        {"processes": 2},
    ],
)
def test_tensors_come_and_go_through_shared_memory(changes):
    before = objects()
    with ServerThread(FakeEngine(), client_shared_memory=True) as thread:
        report = measure(thread.url, **changes)
        assert thread.runtime.region_table.count == 0
        moved = thread.runtime.metrics.registry.get_sample_value(
            "mlp_shared_memory_moved_bytes_total", {"direction": "in"}
        )
    (result,) = report.results
    assert result.ok
    assert result.sent > 10
    assert result.sent_bytes_per_s > 0
    assert result.received_bytes_per_s == pytest.approx(
        result.sent_bytes_per_s * (2 if changes.get("output") else 1)
    )
    assert moved >= result.sent_bytes_per_s * 0.2
    assert result.kernels
    assert result.server_timing_s
    assert "tensors in shared memory" in render_report(report)
    assert objects() == before


class Stubborn(FakeEngine):
    """Answers requests alone rightly, and the load's as it is told."""

    def run(self, batch):
        report = super().run(batch)
        for segment in batch.segments:
            out = np.frombuffer(segment.output, NUMPY_DTYPES[segment.output_dtype])
            self.spoil(out)
        return report

    def spoil(self, out: np.ndarray) -> None:
        pass


def test_wrong_answers_are_found():
    engine = Stubborn()
    with ServerThread(engine, client_shared_memory=True) as thread:
        # The lone requests come first, by HTTP.
        seen = []

        def spoil(out: np.ndarray) -> None:
            seen.append(len(out))
            if len(seen) > 50:
                out[3] += 100

        engine.spoil = spoil
        (result,) = measure(thread.url).results
    assert result.wrong_answers > 0
    assert set(result.faults) == {"wrong_values"}


def test_answers_that_were_not_written_are_found(monkeypatch):
    monkeypatch.setattr("service.shared_region.Region.write", lambda *_: None)
    with ServerThread(FakeEngine(), client_shared_memory=True) as thread:
        (result,) = measure(thread.url).results
    assert set(result.faults) == {"wrong_length"}
    assert result.wrong_answers == result.sent


def test_a_service_that_does_not_allow_it_is_no_service_for_it():
    before = objects()
    with (
        ServerThread(FakeEngine()) as thread,
        pytest.raises(StartError, match="MLP_CLIENT_SHARED_MEMORY"),
    ):
        measure(thread.url)
    assert objects() == before
