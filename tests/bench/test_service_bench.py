"""`tilemlp bench service`, with rounds too short to mean anything."""

from __future__ import annotations

import csv
import json
import socket
import threading

import pytest

from service.bench import service as bench
from service.bench.clients import run_round
from service.bench.environment import describe_environment
from service.bench.stub import StubEngine
from service.engine.fused import SLOTS
from service.readme import service_bench_table


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_it_writes_a_line_per_server_and_case(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "CASES", ((1, 2), (64, 2)))
    monkeypatch.setattr(bench, "_WORKERS", (0, 2))
    monkeypatch.setattr(bench, "CASES_OF_MANY_CORES", bench.CASES)
    monkeypatch.setattr(bench, "half_the_cores", lambda: 2)
    monkeypatch.setattr(bench, "_SOAK_REQUESTS", 320)
    steps: list[str] = []
    options = bench.ServiceOptions(tmp_path, "a test", rounds=3, round_s=0.05, commit="abc")
    lines = bench.run_service_bench(options, steps.append)
    (written,) = tmp_path.glob("*-service.csv")
    with written.open(newline="") as file:
        found = list(csv.DictReader(file))
    servers = [("sockets", "2"), ("echo", "0"), ("tilemlp", "0"), ("tilemlp", "2")]
    assert [(r["server"], r["workers"], r["rows"], r["clients"]) for r in found] == [
        (*server, rows, "2") for rows in ("1", "64") for server in servers
    ]
    for row in found:
        assert int(row["errors"]) == 0
        rate, gbytes = float(row["requests_per_s"]), float(row["gbytes_per_s"])
        assert gbytes == pytest.approx(rate * int(row["rows"]) * 1792 * 2 / 1e9, abs=1e-3)
        assert 0 < float(row["p50_us"]) <= float(row["p99_us"])
        assert float(row["cpu_ms_per_request"]) > 0
    about = json.loads(written.with_suffix(".json").read_text())
    assert (about["command"], about["commit"]) == ("a test", "abc")
    assert about["soak_requests"] == 320
    assert len(about["loop_us_per_request"]) == 8
    # The event loop is one of the process's threads; blocking sockets have none.
    for row, (name, *_, loop_us) in zip(found, about["loop_us_per_request"], strict=True):
        assert (loop_us > 0) == (name != "sockets")
        assert loop_us <= float(row["cpu_ms_per_request"]) * 1e3 * 1.01
    for row, (name, workers, *_, main, user, system, clients, busy) in zip(
        found, about["processors_ms_per_request"], strict=True
    ):
        assert (name, str(workers)) == (row["server"], row["workers"])
        # Ticks are coarse for rounds as short as these.
        assert min(main, user, system) >= 0
        assert clients > 0
        assert busy > 0
        if (name, workers) in {("echo", 0), ("tilemlp", 0)}:
            assert user == system == 0
    assert any("round 3 of 3" in step for step in steps)
    assert len(lines) == 1 + 8 + 2
    monkeypatch.setattr("service.readme.RESULTS", tmp_path)
    table = service_bench_table()
    # Four lines of figures; and of the largest case, where the processors' time goes.
    assert table.count("| tilemlp |") == 4 + 2
    assert "of 64 rows from 2 clients" in table


def test_the_stub_takes_as_many_batches_as_the_gpu_engine():
    assert StubEngine.concurrency == SLOTS


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nlong body",
        b"",
    ],
)
def test_clients_count_what_is_no_answer_as_an_error(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        result = run_round(listener.getsockname()[1], b"body", clients=1, requests=1)
        thread.join()
    assert (result.errors, result.latencies_s) == (1, [])


def test_the_environment_says_what_ran_where():
    about = describe_environment("tilemlp bench x")
    assert about["command"] == "tilemlp bench x"
    assert {"date", "commit", "machine", "python", "versions"} <= set(about)
