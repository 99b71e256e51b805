"""`tilemlp bench service --peers`, with rounds too short to mean anything."""

from __future__ import annotations

import csv
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from service.bench.peers import compare, table
from service.bench.peers.compare import run_peer_bench
from service.bench.peers.measure import Measured, Round, measure_server
from service.bench.peers.mlp import Mlp, answer_headers
from service.bench.peers.options import Cases, PeerOptions, parse_cases, parse_workers
from service.bench.peers.plot import draw_peers
from service.bench.peers.process import PeerProcess
from service.bench.peers.servers import BENTOML, LITSERVE, RAY_SERVE, PeerServer, servers
from service.bench.service_results import COLUMNS, ServiceResults
from service.bench.stub import StubEngine
from service.errors import ConfigError, StartError
from service.load.options import Transport
from service.load.tally import Tally

ECHO, OURS, TWO, SHARED = servers("echo", (0, 2))[:4]
ABSENT = PeerServer("absent", "no_such_module", (), ())
ROW_BYTES = 1792


def options(**changes: object) -> PeerOptions:
    given = {
        "models": ("echo",),
        "cases": Cases(((1, 1),)),
        "workers": (0,),
        "rounds": 1,
        "duration_s": 0.2,
        "warm_up_s": 0.0,
    }
    return PeerOptions(**{**given, **changes})


def row(server: str, requests_per_s: float, **changes: object) -> dict[str, str]:
    given = {
        **dict.fromkeys(COLUMNS, "1"),
        "server": server,
        "transport": "http",
        "model": "echo",
        "requests_per_s": requests_per_s,
        **changes,
    }
    return {name: str(value) for name, value in given.items()}


@pytest.mark.e2e
def test_servers_are_measured_one_after_the_other(tmp_path: Path, monkeypatch, caplog) -> None:
    broken = PeerServer("broken", "sys", (), ("-c", "raise SystemExit('no luck')"))
    chosen = [ECHO, OURS, TWO, SHARED, ABSENT, broken]
    monkeypatch.setattr(compare, "servers", lambda model, workers: chosen)
    steps: list[str] = []
    given = options(rounds=2, commit="abc")
    lines = run_peer_bench(given, tmp_path, "a test", steps.append)
    with (tmp_path / "cpu-service.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(one["server"], one["transport"], one["workers"]) for one in found] == [
        ("echo", "http", "0"), ("tilemlp", "http", "0"), ("tilemlp", "http", "2"),
        ("tilemlp", "shm", "0"),
    ]  # fmt: skip
    for one in found:
        assert (one["model"], one["rows"], one["clients"], one["errors"]) == ("echo", "1", "1", "0")
        rate = float(one["requests_per_s"])
        assert rate > 0
        assert float(one["gbytes_per_s"]) == pytest.approx(rate * ROW_BYTES * 2 / 1e9, abs=1e-3)
        assert 0 < float(one["p50_us"]) <= float(one["p99_us"])
        assert float(one["cpu_ms_per_request"]) > 0
    about = json.loads((tmp_path / "cpu-service.json").read_text())["peers"]
    assert (about["command"], about["rounds"], about["commit"]) == ("a test", 2, "abc")
    assert 0 < about["clients_busy"] < 1.5
    absent, failed = about["left_out"]
    assert "absent: must be installed" in absent
    assert "pip install 'tilemlp[bench-peers]'" in absent
    assert failed == "echo: broken (http, 1 workers): must start within 180 s, did not"
    assert "no luck" in caplog.text
    assert len(lines) == 4 + 2 + 1
    assert (tmp_path / "cpu-service.png").read_bytes().startswith(b"\x89PNG")
    shown = table.peer_tables(tmp_path)
    assert shown.count("| tilemlp") == 3
    assert "| tilemlp | 2 |" in shown
    assert "Left out: absent" in shown


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("server", [LITSERVE, BENTOML, RAY_SERVE], ids=lambda one: one.name)
def test_a_peer_answers_rightly(server: PeerServer, workers: int, monkeypatch) -> None:
    if not server.is_installed:
        pytest.skip(f"{server.name} is not installed; pip install 'tilemlp[bench-peers]'")
    chosen = [replace(server, workers=workers)]
    monkeypatch.setattr(compare, "servers", lambda model, workers: chosen)
    (one,), left_out = compare.compare(options(cases=Cases(((5, 4),))), lambda step: None)
    assert left_out == []
    assert one.found.errors == 0
    assert one.found.requests_per_s > 0


def test_a_server_that_ends_at_once_shows_its_log() -> None:
    process = PeerProcess(PeerServer("x", "sys", (), ("-c", "raise SystemExit('no luck')")), "echo")
    try:
        with pytest.raises(StartError, match=r"^must start within 7 s, did not:\nno luck"):
            process.wait_ready(ROW_BYTES, 7.0)
    finally:
        process.stop()


def test_what_a_server_starts_is_measured_and_ended(tmp_path: Path) -> None:
    """Also what makes itself independent, as daemons do."""
    told = tmp_path / "pid"
    spin = f"import os; open({str(told)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    code = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {spin!r}], start_new_session=True);"
        "time.sleep(60)"
    )
    process = PeerProcess(PeerServer("x", "sys", (), ("-c", code)), "echo")
    deadline = time.monotonic() + 20
    while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    before = process.cpu_s()
    while process.cpu_s() < before + 0.1:
        assert time.monotonic() < deadline
    process.stop()
    time.sleep(0.1)
    assert not os.path.exists(f"/proc/{told.read_text()}/exe")


@pytest.mark.e2e
@pytest.mark.parametrize(("server", "busy_s"), [(OURS, 0.0), (ECHO, None)])
def test_how_busy_the_gpu_was_is_known_where_the_server_says_so(server, busy_s) -> None:
    process = PeerProcess(server, "echo")
    try:
        process.wait_ready(ROW_BYTES, 60.0)
        assert process.gpu_busy_s() == busy_s
    finally:
        process.stop()


def test_a_comparison_that_is_cut_keeps_the_servers_that_were_measured(
    tmp_path: Path, monkeypatch
) -> None:
    found = Round(1000.0, 900.0, 1200.0, 0.5, None, 0.3, 0)

    def measure(server, model, cases, options, progress):
        if server is OURS:
            raise KeyboardInterrupt
        yield Measured(server, model, 1, 1, ROW_BYTES, found)

    monkeypatch.setattr(compare, "measure_server", measure)
    monkeypatch.setattr(compare, "servers", lambda model, workers: [ECHO, OURS])
    with pytest.raises(KeyboardInterrupt):
        run_peer_bench(options(commit="abc"), tmp_path, "a test", lambda step: None)
    about, rows = ServiceResults(tmp_path, "cpu").peers()
    assert [one["server"] for one in rows] == ["echo"]
    assert (about["commit"], about["left_out"]) == ("abc", [])


def test_no_server_is_started_after_the_budget(monkeypatch) -> None:
    asked = []

    def measure(server, model, cases, options, progress):
        asked.append(server.name)
        time.sleep(0.02)
        return []

    monkeypatch.setattr(compare, "measure_server", measure)
    monkeypatch.setattr(compare, "servers", lambda model, workers: [ECHO, OURS])
    _, left_out = compare.compare(options(budget_s=0.01), lambda step: None)
    assert asked == ["echo"]
    assert left_out == ["echo: tilemlp (http, 0 workers): must begin within 0.01 s, would not have"]


@pytest.mark.e2e
@pytest.mark.parametrize(("answered", "expected"), [(11, [1.0, 4.0, 4.0]), (12, [1.0, 1.0])])
def test_a_server_that_answers_seldom_is_measured_longer(answered, expected, monkeypatch) -> None:
    asked = []

    def answer(plans):
        asked.append(plans[0].options.duration_s)
        return Tally(requests=answered, cpu_shares=(0.5,))

    monkeypatch.setattr("service.bench.peers.measure.run_plans", answer)
    given = options(cases=Cases(((1, 4),)), rounds=2, duration_s=1.0)
    (one,) = measure_server(ECHO, "echo", given.cases.common, given, lambda step: None)
    assert asked == expected
    assert one.found.requests_per_s == answered / expected[-1]


def test_what_was_measured_before_a_server_failed_is_kept(monkeypatch) -> None:
    def measure(server, model, cases, options, progress):
        yield "first"
        raise StartError("load process 0 ended before it was done")

    monkeypatch.setattr(compare, "measure_server", measure)
    monkeypatch.setattr(compare, "servers", lambda model, workers: [OURS])
    assert compare.compare(options(), lambda step: None) == (
        ["first"],
        ["echo: tilemlp (http, 0 workers): load process 0 ended before it was done"],
    )


def test_a_peer_splits_what_is_more_than_the_engine_takes(monkeypatch) -> None:
    monkeypatch.setenv("TILEMLP_BENCH_MODEL", "echo")
    batches = []
    run = StubEngine.run

    def note(engine, batch):
        batches.append([segment.tokens for segment in batch.segments])
        return run(engine, batch)

    monkeypatch.setattr(StubEngine, "run", note)
    bodies = [os.urandom(rows * ROW_BYTES) for rows in (8000, 192, 1, 8192, 5)]
    assert Mlp().run(bodies) == bodies
    assert batches == [[8000, 192], [1], [8192], [5]]


def test_every_peer_serves_the_same_mlp(monkeypatch) -> None:
    monkeypatch.setenv("TILEMLP_BENCH_MODEL", "echo")
    mlp = Mlp()
    bodies = [os.urandom(ROW_BYTES), b"", os.urandom(3 * ROW_BYTES)]
    assert mlp.run([bodies[0], bodies[2]]) == [bodies[0], bodies[2]]
    assert answer_headers(3 * ROW_BYTES, mlp.hidden_size) == {
        "x-tensor-shape": "3,896",
        "x-tensor-dtype": "bf16",
    }


def test_presets_are_computed_and_have_no_bare_echo() -> None:
    found = servers("qwen2.5-0.5b", (0, 2, 3))
    assert [(one.name, one.workers) for one in found if one.workers < 4] == [
        ("tilemlp", 0), ("tilemlp", 2), ("tilemlp", 3), ("tilemlp", 0), ("tilemlp", 3),
        ("litserve", 1), ("bentoml", 1), ("rayserve", 1),
    ]  # fmt: skip
    shared = [(one.name, one.workers) for one in found if one.transport is Transport.SHM]
    assert shared == [("tilemlp", 0), ("tilemlp", 3)]
    assert "qwen2.5-0.5b" in found[0].arguments


def test_other_servers_get_more_processes_where_there_are_cores(monkeypatch) -> None:
    for counts, expected in (([0, 1, 2], [1]), ([0, 1, 2, 4], [4, 1])):
        monkeypatch.setattr(
            "service.bench.peers.servers.worker_counts", lambda counts=counts: counts
        )
        for name in ("litserve", "bentoml", "rayserve"):
            found = servers("echo", (0,))
            assert [one.workers for one in found if one.name == name] == expected


def test_cases_and_models() -> None:
    assert parse_cases("1x1, 64x32") == Cases(((1, 1), (64, 32)))
    own = parse_cases("1x1,qwen2.5-7b:2048x16,64x32,qwen2.5-7b:1x2")
    assert own.of("qwen2.5-7b") == ((2048, 16), (1, 2))
    assert own.of("echo") == ((1, 1), (64, 32))
    for text in ("", "1", "0x1", "1x0", "axb", "1x1,", "1x1x1"):
        with pytest.raises(ConfigError, match="cases: must be like"):
            parse_cases(text)
    with pytest.raises(ConfigError, match=r"models: must be of echo, qwen2\.5-0\.5b"):
        options(models=("gpt",))
    with pytest.raises(ConfigError, match=r"cases: .* \(echo\), some are qwen2\.5-7b's"):
        options(models=("echo",), cases=own)
    with pytest.raises(ConfigError, match=r"cases: must hold one .* none for echo"):
        options(models=("echo", "qwen2.5-7b"), cases=parse_cases("qwen2.5-7b:2048x16"))
    assert parse_workers("0,4,0") == (0, 4)
    for text in ("", "-1", "a", "1,", "100"):
        with pytest.raises(ConfigError, match="workers: must be like"):
            parse_workers(text)


def test_without_a_gpu_presets_are_measured_with_few_rows_only(monkeypatch) -> None:
    asked = []

    def measure(server, model, cases, options, progress):
        asked.append((model, cases))
        return []

    monkeypatch.setattr(compare, "measure_server", measure)
    monkeypatch.setattr(compare, "servers", lambda model, workers: [ECHO])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    both = options(models=("echo", "qwen2.5-0.5b"), cases=Cases(((64, 1), (65, 1))))
    _, (sentence,) = compare.compare(both, lambda step: None)
    assert asked == [("echo", [(64, 1), (65, 1)]), ("qwen2.5-0.5b", [(64, 1)])]
    assert sentence.startswith("qwen2.5-0.5b: rows must be at most 64 without a GPU")


def test_nothing_measured_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(compare, "servers", lambda model, workers: [ABSENT])
    with pytest.raises(ConfigError, match="none was: absent: must be installed"):
        run_peer_bench(options(), tmp_path, "a test", lambda step: None)
    assert list(tmp_path.iterdir()) == []


def test_each_half_of_the_results_keeps_the_other(tmp_path: Path) -> None:
    results = ServiceResults(tmp_path, "cpu")
    assert results.added() == results.peers() == ({}, [])
    stub, peer = row("tilemlp", 5.0, model="stub"), row("litserve", 7.0)
    results.replace_added({"rounds": 5}, [stub])
    results.replace_peers({"rounds": 3}, [peer])
    assert results.added() == ({"rounds": 5}, [stub])
    assert results.peers() == ({"rounds": 3}, [peer])
    results.replace_added({"rounds": 6}, [stub, stub])
    assert results.added() == ({"rounds": 6}, [stub, stub])
    assert results.peers() == ({"rounds": 3}, [peer])


def test_a_comparison_is_added_to_an_earlier_one(tmp_path: Path, monkeypatch) -> None:
    def measure(server, model, cases, options, progress):
        found = Round(10.0 * len(options.only), 1.0, 1.0, 1.0, None, 0.1, 0)
        return [Measured(server, model, rows, clients, ROW_BYTES, found) for rows, clients in cases]

    monkeypatch.setattr(compare, "measure_server", measure)
    monkeypatch.setattr(compare.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(PeerServer, "is_installed", True)
    first = options(workers=(0,), only=("tilemlp", "echo"))
    run_peer_bench(first, tmp_path, "first", lambda _: None)
    second = options(workers=(0,), only=("tilemlp",), add=True)
    run_peer_bench(second, tmp_path, "second", lambda _: None)
    about, rows = ServiceResults(tmp_path, "cpu").peers()
    found = {(row["server"], row["requests_per_s"]) for row in rows}
    assert found == {("tilemlp", "10.0"), ("echo", "20.0")}
    assert about["command"] == "second"
    assert [run["command"] for run in about["earlier"]] == ["first"]
    # Without it, what was there goes.
    run_peer_bench(options(workers=(0,), only=("echo",)), tmp_path, "third", lambda _: None)
    about, rows = ServiceResults(tmp_path, "cpu").peers()
    assert {row["server"] for row in rows} == {"echo"}
    assert "earlier" not in about


def test_unknown_servers_are_refused() -> None:
    with pytest.raises(ConfigError, match="one is 'nginx'"):
        options(only=("nginx",))


def test_ours_is_compared_with_the_best_other_of_the_same_case() -> None:
    rows = [
        row("echo", 900),
        row("tilemlp", 100),
        row("tilemlp", 400, transport=Transport.SHM.value),
        row("litserve", 20),
        row("rayserve", 50),
        row("tilemlp", 80, rows=7),
        row("litserve", 0, rows=7),
        row("bentoml", 700, clients=32),
        row("bentoml", 700, model="other"),
    ]
    assert table.best_other(rows, rows[0]) is None
    assert table.best_other(rows, rows[1]) is table.best_other(rows, rows[2]) is rows[4]
    assert table.best_other(rows, rows[5]) is None
    alone = [*rows[:2]]
    assert table.best_other(alone, alone[1]) is None
    bars = draw_peers(rows).axes[0].patches
    assert sorted(bar.get_height() for bar in bars) == [0, 20, 50, 80, 100, 400, 700, 700, 900]
    with pytest.raises(ConfigError, match="must have been measured"):
        draw_peers([])


def test_the_picture_shows_the_best_workers_and_the_scaling() -> None:
    rates = {0: 10, 1: 8, 4: 30}
    rows = [row("tilemlp", rate, workers=workers) for workers, rate in rates.items()]
    rows += [row("litserve", 5, workers=1), row("litserve", 7, workers=4)]
    bars, lines = draw_peers(rows).axes
    assert [bar.get_height() for bar in bars.patches] == [30, 7]
    (line,) = lines.get_lines()
    assert list(line.get_ydata()) == [10, 8, 30]
    assert [label.get_text() for label in lines.get_xticklabels()] == ["0", "1", "4"]


def test_cases_stand_together_in_the_table() -> None:
    rows = [row(name, 1, clients=clients) for name in ("tilemlp", "bentoml") for clients in (9, 1)]
    found = [(one["clients"], one["server"]) for one in table.by_case(rows)]
    assert found == [("9", "tilemlp"), ("9", "bentoml"), ("1", "tilemlp"), ("1", "bentoml")]
