"""A request's time budget and the soak: what is made of scrapes and load reports."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from service.bench import budget, served, soak
from service.bench.budget import (
    LOADS,
    STAGES,
    BudgetOptions,
    BudgetRow,
    make_row,
    read_rows,
    run_budget_bench,
    write_rows,
)
from service.bench.budget_plot import draw_budget, plot_budget
from service.bench.engine_results import read_one_gpu
from service.bench.engine_table import more_gpus_table, soak_sentences
from service.bench.served import Samples, ServedModel, parse_samples
from service.bench.soak import Window, gpu_bytes, summarise
from service.errors import ConfigError, StartError
from service.load.options import LoadOptions
from service.load.report import LoadResult, Quantiles

WHERE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "versions": {"torch": "2.11.0"},
    "machine": "a CPU, 16 cores",
    "commit": "abc",
    "date": "2026-11-30T00:00:00",
    "command": "tilemlp bench x",
}
BEFORE = """\
# HELP mlp_stage_duration_seconds Time per stage
mlp_requests_total{api="mlp",outcome="ok"} 10.0
mlp_batch_tokens_count 5.0
mlp_batch_tokens_sum 100.0
mlp_gpu_busy_seconds_total 1.0
mlp_gpu_memory_used_bytes{gpu="0"} 3e+09
mlp_gpu_memory_used_bytes{gpu="1"} 1e+09
"""
MEANS_US = {"receive": 10, "decode": 5, "queue": 20, "encode": 7, "h2d": 4, "compute": 30, "d2h": 6}


def after() -> str:
    lines = [
        'mlp_requests_total{api="mlp",outcome="ok"} 110.0',
        "mlp_batch_tokens_count 25.0",
        "mlp_batch_tokens_sum 900.0",
        "mlp_gpu_busy_seconds_total 1.5",
        'mlp_request_duration_seconds_sum{api="mlp"} 0.01',
        'mlp_request_duration_seconds_count{api="mlp"} 100.0',
        'mlp_kernel_duration_seconds_sum{kernel="down"} 0.0002',
        'mlp_kernel_duration_seconds_count{kernel="down"} 20.0',
    ]
    for stage, mean_us in MEANS_US.items():
        label = f'{{stage="{stage}"}}'
        lines += [
            f"mlp_stage_duration_seconds_sum{label} {mean_us * 20e-6}",
            f"mlp_stage_duration_seconds_count{label} 20.0",
        ]
    return "\n".join(lines) + "\n"


def result(**changes: object) -> LoadResult:
    latency = Quantiles(100, 2e-4, 1.5e-4, 2e-4, 3e-4, 4e-4, 5e-4)
    values: dict[str, object] = dict.fromkeys(LoadResult.__slots__)
    values |= {"latency": latency, "requests_per_s": 50.0, "errors": 0}
    values |= {"sent_bytes_per_s": 2e9, "received_bytes_per_s": 1e9}
    return LoadResult(**{**values, **changes})  # type: ignore[arg-type]


def row(**changes: object) -> BudgetRow:
    made = make_row("m", 4, 64, result(**changes), parse_samples(BEFORE), parse_samples(after()))
    assert isinstance(made, BudgetRow)
    return made


def test_parts_of_a_request_are_what_the_metrics_grew_by() -> None:
    made = row()
    found = {stage.removesuffix("_us"): getattr(made, stage) for stage in STAGES}
    parts = {**MEANS_US, "gate_up": 20.0, "down": 10.0}
    del parts["compute"]
    assert found == {**parts, "other": 100.0 - sum(parts.values())}
    assert (made.request_us, made.p50_us, made.p99_us) == (100.0, 150.0, 300.0)
    # 100 requests at 50 a second are two seconds.
    assert (made.busy_share, made.batch_tokens, made.gbytes_per_s) == (0.25, 40.0, 3.0)


def test_a_load_without_a_right_answer_is_a_row_all_the_same() -> None:
    made = row(latency=None, requests_per_s=0.0, errors=3)
    assert (made.p50_us, made.busy_share, made.errors) == (0.0, 0.0, 3)


def test_rows_are_read_as_they_were_written_and_drawn(tmp_path: Path) -> None:
    rows = [row(), row(errors=2)]
    write_rows(tmp_path / "x-budget.csv", rows)
    assert read_rows(tmp_path / "x-budget.csv") == rows
    assert plot_budget(tmp_path) == [tmp_path / "x-budget.png"]
    assert (tmp_path / "x-budget.png").read_bytes().startswith(b"\x89PNG")
    (panel,) = draw_budget(rows[:1]).axes
    widths = [bar.get_width() for bar in panel.patches]
    assert widths == [getattr(rows[0], stage) for stage in STAGES]


class Pretending:
    """Is ready at once, and has a scrape before and after each load."""

    made: ClassVar[list[Pretending]] = []

    def __init__(self, *, preset: str, workers: int) -> None:
        assert workers == 0, "the stages are of one process"
        self.preset = preset
        self.url = f"http://{preset}"
        self.ready = self.closed = False
        self.scrapes = 0
        Pretending.made.append(self)

    def wait_ready(self) -> None:
        assert len(Pretending.made) == 2, "they start together"
        self.ready = True

    def samples(self) -> Samples:
        assert self.ready
        self.scrapes += 1
        return parse_samples(BEFORE if self.scrapes % 2 else after())

    def close(self) -> None:
        self.closed = True


def test_every_model_gets_every_load_and_a_line_at_once(tmp_path: Path, monkeypatch) -> None:
    asked: list[LoadOptions] = []

    def load(options: LoadOptions) -> SimpleNamespace:
        if len(asked) == 4:
            raise StartError("gone")
        asked.append(options)
        return SimpleNamespace(results=(result(),))

    monkeypatch.setattr(Pretending, "made", [])
    monkeypatch.setattr(budget, "ServedModel", Pretending)
    monkeypatch.setattr(budget, "run_load", load)
    options = BudgetOptions(("a", "b"), 2.0, tmp_path, "tilemlp bench budget", "0123")
    with pytest.raises(StartError, match="gone"):
        run_budget_bench(options, lambda *_: None)
    assert [(one.url, one.connections, one.rows[0][0]) for one in asked] == [
        *(("http://a", connections, rows) for connections, rows in LOADS),
        ("http://b", *LOADS[0]),
    ]
    (path,) = tmp_path.glob("*-budget.csv")
    assert [(one.model, one.connections, one.rows) for one in read_rows(path)] == [
        *(("a", connections, rows) for connections, rows in LOADS),
        ("b", *LOADS[0]),
    ]
    assert json.loads(path.with_suffix(".json").read_text())["commit"] == "0123"
    assert all(one.closed for one in Pretending.made)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold a file \*-budget.csv"):
        plot_budget(tmp_path)


def test_memory_of_all_gpus_counts() -> None:
    assert gpu_bytes(parse_samples(BEFORE)) == 4_000_000_000


def window(**changes: float) -> Window:
    values = {
        "seconds": 3.0,
        "requests_per_s": 1.0,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "errors": 0,
        "host_bytes": 100,
        "gpu_bytes": 50,
    }
    return Window(**{**values, **changes})  # type: ignore[arg-type]


def test_growth_counts_from_the_second_window_on() -> None:
    found = summarise(
        [
            window(host_bytes=1, gpu_bytes=1, errors=1),
            window(),
            window(errors=2),
            window(host_bytes=130, gpu_bytes=45, p99_ms=3.0),
        ]
    )
    assert found == {
        "errors": 3,
        "host_growth_bytes": 30,
        "gpu_growth_bytes": -5,
        "p99_last_over_first": 1.5,
    }


def test_the_service_is_started_scraped_and_ended() -> None:
    with ServedModel(device="cpu", workers=1) as server:
        samples = server.samples()
        assert samples["mlp_ready"] == 1
        assert samples['mlp_requests_total{api="mlp",outcome="ok"}'] == 0
        assert server.resident_bytes() > 1e6
    assert server._process.returncode == 0


def test_a_service_that_refuses_to_start_is_said_why() -> None:
    with pytest.raises(StartError, match=r"(?s)did not become ready.*device: string should match"):
        ServedModel(device="tpu").wait_ready()


def test_a_service_that_never_becomes_ready_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(served, "_START_S", 0.0)
    with pytest.raises(StartError, match="did not become ready"):
        ServedModel(device="cpu").wait_ready()


def test_the_soak_is_told_in_sentences(tmp_path: Path) -> None:
    assert soak_sentences(tmp_path) == "Not measured yet."
    windows = [window(requests_per_s=9.0), window(requests_per_s=100.0), window(p99_ms=3.5)]
    about = {
        **WHERE,
        "seconds": 600.0,
        "connections": 32,
        "rows": [[1, 0.4], [64, 0.6]],
        "model": "qwen2.5-0.5b",
        "workers": 8,
        **summarise(windows),
        "windows": [asdict(one) for one in windows],
    }
    (tmp_path / "h200-soak.json").write_text(json.dumps(about))
    text = soak_sentences(tmp_path)
    assert "600 s of 32 connections of mixed requests (1 rows: 40%, 64 rows: 60%)" in text
    # The first window, in which everything is used for the first time, is left out.
    assert "8 front ends: 1 to 100 requests/s, p99 2.0 to 3.5 ms" in text
    assert "0 errors" in text
    assert "grew by +0.0 MiB" in text


class _Served(SimpleNamespace):
    def __enter__(self) -> _Served:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_soak_that_is_cut_keeps_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_window(_: object, seconds: float, index: int) -> Window:
        if index == 2:
            raise KeyboardInterrupt
        return window(seconds=seconds)

    monkeypatch.setattr(soak, "ServedModel", _Served)
    monkeypatch.setattr(soak, "_run_window", run_window)
    monkeypatch.setattr(soak.torch.cuda, "is_available", lambda: False)
    options = soak.SoakOptions("0.5b", 100.0, tmp_path, "tilemlp bench soak", "abc")
    with pytest.raises(KeyboardInterrupt):
        soak.run_soak(options, lambda *_: None)
    about = json.loads((tmp_path / "cpu-soak.json").read_text())
    assert [one["seconds"] for one in about["windows"]] == pytest.approx([7.0, 8.1], abs=0.1)
    assert about["seconds"] == pytest.approx(15.1, abs=0.1)


def test_windows_of_a_soak_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak.time, "monotonic", lambda: 100.0)
    # A slow start, or a slow window, shortens those that follow.
    assert soak.window_seconds(600.0, 0) == pytest.approx(47.0)
    assert soak.window_seconds(200.0, 8) == pytest.approx(47.0)
    assert soak.window_seconds(99.0, 9) == soak.MIN_WINDOW_S


def test_a_soak_ends_early_rather_than_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def run_window(_: object, seconds: float, index: int) -> Window:
        ran.append(index)
        return window(seconds=seconds)

    monkeypatch.setattr(soak, "ServedModel", _Served)
    monkeypatch.setattr(soak, "_run_window", run_window)
    monkeypatch.setattr(soak.torch.cuda, "is_available", lambda: False)
    # Such as behind a start that took all of it.
    options = soak.SoakOptions("0.5b", 0.0, tmp_path, "tilemlp bench soak", "abc")
    soak.run_soak(options, lambda *_: None)
    assert ran == [0, 1, 2]


def test_several_gpus_are_held_against_one(tmp_path: Path) -> None:
    assert more_gpus_table(tmp_path) == "Not measured yet."
    columns = "model,requests,rows,batches_per_s,busy_share\n"
    one = tmp_path / "h200-engine.csv"
    assert read_one_gpu(one) is None
    one.write_text(f"{columns}m,1,512,100.0,0.9\nm,4,512,50.0,0.9\n")
    one.with_suffix(".json").write_text(json.dumps({**WHERE, "commit": "0ldc0de"}))
    (tmp_path / "h200-engine-x2.csv").write_text(f"{columns}m,4,512,95.0,0.875\n")
    about = {**WHERE, "one_gpu": read_one_gpu(one)}
    (tmp_path / "h200-engine-x2.json").write_text(json.dumps(about))
    # One that is measured later changes nothing.
    one.write_text(f"{columns}m,4,512,500.0,0.9\n")
    text = more_gpus_table(tmp_path)
    assert "| m | 4 × 512 | 50.0 | 95.0 | 1.90× | 88 % |" in text
    assert "One GPU at commit 0ldc0de." in text


def test_several_gpus_without_one_to_compare_with(tmp_path: Path) -> None:
    columns = "model,requests,rows,batches_per_s,busy_share\n"
    (tmp_path / "h200-engine-x2.csv").write_text(f"{columns}m,4,512,95.0,0.875\n")
    (tmp_path / "h200-engine-x2.json").write_text(json.dumps(WHERE))
    text = more_gpus_table(tmp_path)
    assert "| m | 4 × 512 |  | 95.0 |  | 88 % |" in text
    assert "One GPU at commit none." in text
