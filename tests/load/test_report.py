import json
from dataclasses import asdict

import pytest

from service.load.faults import Fault
from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.report import make_result, write_json
from service.load.run import run_load
from service.load.tally import Tally
from tests.load.fake_server import FakeServer
from tests.load.reports import make_report, make_tally

LOAD = Load(8, None)


def test_times_are_in_seconds_and_rates_per_second():
    tally = make_tally([1.0] * 50 + [3.0] * 49 + [10.0], rows=4)
    result = make_result(LOAD, tally, 2.0)
    latency = result.latency
    assert latency.count == 100
    assert latency.p50_s == pytest.approx(0.001, rel=0.004)
    assert latency.p90_s == latency.p99_s == pytest.approx(0.003, rel=0.004)
    assert latency.p999_s == latency.max_s == 0.01
    assert latency.mean_s == pytest.approx(0.00207)
    assert (result.requests_per_s, result.tokens_per_s) == (50.0, 200.0)
    assert result.sent_bytes_per_s == result.received_bytes_per_s == 200 * 1792
    assert result.server_timing_s == {"queue": pytest.approx(0.000207)}
    assert asdict(result.batch_tokens) == {"mean": 3.0, "p50": 3.0, "max": 3}


def test_ok_is_right_answers_and_nothing_else():
    assert make_result(LOAD, make_tally([1.0]), 1.0).ok
    assert not make_result(LOAD, Tally(), 1.0).ok
    for spoil in (
        lambda tally: tally.note_fault(Fault.BACKLOG, ""),
        lambda tally: tally.note_fault(Fault.WRONG_VALUES, ""),
        lambda tally: tally.note_status("429 queue_full", ""),
    ):
        tally = make_tally([1.0])
        spoil(tally)
        assert not make_result(LOAD, tally, 1.0).ok


def test_one_load_that_is_not_ok_spoils_the_report():
    good, bad = make_tally([1.0]), Tally()
    assert make_report((LOAD, good), (LOAD, good)).ok
    assert not make_report((LOAD, good), (LOAD, bad)).ok


def test_what_was_not_seen_is_absent():
    result = make_result(LOAD, Tally(), 1.0)
    assert (result.latency, result.wait, result.batch_tokens) == (None, None, None)
    assert result.latency_by_rows == result.kernels == result.server_timing_s == {}


def test_the_json_file_says_everything_but_the_key(tmp_path):
    path = tmp_path / "report.json"
    with FakeServer() as server:
        report = run_load(
            LoadOptions(
                url=server.url,
                rows=((1, 2.0), (3, 1.0)),
                api_key="open-sesame",
                duration_s=0.2,
                warm_up_s=0.0,
                quiet=True,
            )
        )
    write_json(report, path)
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    assert "open-sesame" not in text
    assert document["ok"] is True
    assert document["options"]["api_key"] == "***"
    assert document["options"]["rows"] == [{"tokens": 1, "weight": 2}, {"tokens": 3, "weight": 1}]
    assert (document["options"]["dtype"], document["options"]["output"]) == ("bf16", "mlp")
    assert document["date_utc"].endswith("+00:00")
    assert document["server"] == {"name": "fake", "version": "1.2"}
    assert document["model_metadata"]["inputs"][0]["shape"] == [-1, 16]
    assert document["host"]["cpu_count"] > 0
    assert set(document["versions"]) == {"tilemlp", "python", "httptools", "numpy", "uvloop"}
    assert document["tolerance_of_row_max"] == 2**-6
    (result,) = document["results"]
    assert result["statuses"]["200"] == result["sent"]
    assert result["latency"]["p50_s"] == report.results[0].latency.p50_s
    assert set(result["latency_by_rows"]) == {"1", "3"}


def test_a_report_without_a_key_says_so(tmp_path):
    path = tmp_path / "report.json"
    write_json(make_report((LOAD, Tally())), path)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["options"]["api_key"] is None
    assert document["ok"] is False
