"""The command line: what it prints, and with which status it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__
from service.cli import main
from service.config import Settings
from service.engine.base import Batch, BatchReport
from tests.checkpoints import mlp_tensors, write_checkpoint
from tests.engines import FakeEngine
from tests.servers import ServerThread


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MLP_")]:
        monkeypatch.delenv(name)


def _run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command line."""
    monkeypatch.setattr(sys, "argv", ["tilemlp", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    printed = capsys.readouterr()
    return int(exit_.value.code or 0), printed.out, printed.err


def test_version(monkeypatch, capsys):
    assert _run(monkeypatch, capsys, "--version") == (0, f"tilemlp {__version__}\n", "")


def test_help_names_the_commands(monkeypatch, capsys):
    status, out, _ = _run(monkeypatch, capsys, "--help")
    assert status == 0
    for command in ("serve", "doctor", "load", "bench"):
        assert re.search(rf"^\W*{command}\b", out, re.MULTILINE)


def test_serve_has_one_flag_and_one_variable_per_setting(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = _run(monkeypatch, capsys, "serve", "--help")
    assert status == 0
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in out
        assert f"MLP_{name.upper()}" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], ["port:", "65535", "70000"]),
        (["--preset", "qwen9"], ["preset:", "qwen2.5-0.5b", "'qwen9'"]),
        (["--layers", "3-1"], ["layers:", "ascend", "'3-1'"]),
        (["--layers", "a"], ["layers:", "0-23", "'a'"]),
        (["--device", "tpu"], ["device:", "'tpu'"]),
        (["--device", "cuda:99"], ["device:", "'cuda:99'"]),
        (["--model", "/no/such/model"], ["/no/such/model"]),
        (["--max-queue-tokens", "10"], ["max_queue_tokens:", "max_batch_tokens (8192)", "10"]),
        (["--drain-delay-s", "31"], ["drain_delay_s:", "shutdown_grace_s (30.0)", "31"]),
        (["--preset", "qwen2.5-0.5b", "--layers", "24"], ["layers:", "24"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_wrong_setting_is_one_sentence_and_status_2(monkeypatch, capsys, arguments, words):
    status, out, err = _run(monkeypatch, capsys, "serve", *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("tilemlp: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_wrong_variable_is_named_like_the_flag(monkeypatch, capsys):
    monkeypatch.setenv("MLP_MAX_BATCH_TOKENS", "many")
    status, _, err = _run(monkeypatch, capsys, "serve")
    assert status == 2
    assert "max_batch_tokens" in err
    assert "'many'" in err


def test_api_key_is_never_printed(monkeypatch, capsys):
    monkeypatch.setenv("MLP_API_KEY", "s3cr3t")
    status, out, err = _run(monkeypatch, capsys, "serve")
    assert status == 2
    assert "api_key" in err
    assert "s3cr3t" not in out + err


def test_unknown_flag_is_a_usage_error(monkeypatch, capsys):
    status, _, err = _run(monkeypatch, capsys, "serve", "--nope")
    assert status == 2
    assert "--nope" in err


def test_broken_checkpoint_is_refused(monkeypatch, capsys, tmp_path):
    folder = write_checkpoint(tmp_path / "model", mlp_tensors(), hidden_act="mish")
    status, _, err = _run(monkeypatch, capsys, "serve", "--model", str(folder))
    assert status == 2
    assert "mish" in err
    assert err.count("\n") == 1


def test_doctor_says_what_would_be_used_and_why(monkeypatch, capsys):
    monkeypatch.setenv("MLP_DEVICE", "cpu")
    monkeypatch.setattr(sys, "argv", ["tilemlp", "doctor"])
    with contextlib.suppress(SystemExit):
        main()
    out = capsys.readouterr().out
    assert re.search(rf"^tilemlp: +{__version__}$", out, re.MULTILINE)
    assert re.search(r"^backend: +reference on cpu: the setting device says so$", out, re.MULTILINE)
    assert re.search(r"^settings: +device=cpu$", out, re.MULTILINE)


def test_doctor_fails_where_serve_would(monkeypatch, capsys):
    monkeypatch.setenv("MLP_PORT", "-1")
    status, out, _ = _run(monkeypatch, capsys, "doctor")
    assert status == 2
    assert re.search(r"^settings: +wrong: port: .* is '-1'$", out, re.MULTILINE)


@pytest.mark.e2e
def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "service", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tilemlp {__version__}\n"


@pytest.mark.e2e
def test_port_in_use_is_said_and_ends_it(tmp_path):
    folder = write_checkpoint(tmp_path / "model", mlp_tensors())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "service", "serve", "--model", str(folder), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=Path(__file__).parents[1],
        )
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def _load(url: str, *arguments: str) -> tuple[str, ...]:
    short = ("--duration-s", "0.3", "--warm-up-s", "0.1", "--connections", "2", "--quiet")
    return ("load", "--url", url, "--dtype", "fp32", *short, *arguments)


def test_load_prints_and_writes_its_report(monkeypatch, capsys, tmp_path):
    files = ("--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "load.png"))
    with ServerThread(FakeEngine()) as server:
        status, out, _ = _run(monkeypatch, capsys, *_load(server.url, *files))
    assert status == 0
    assert "connections" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == "tiny"
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_load_exits_with_1_when_requests_fail(monkeypatch, capsys):
    engine = FakeEngine()
    with ServerThread(engine) as server:
        run = engine.run
        answered = iter(range(60))

        def run_some(batch: Batch) -> BatchReport:
            if next(answered, None) is None:
                raise RuntimeError("no")
            return run(batch)

        monkeypatch.setattr(engine, "run", run_some)
        status, out, _ = _run(monkeypatch, capsys, *_load(server.url))
    assert status == 1
    assert "500" in out


@pytest.mark.parametrize("name", ["json", "plot"])
def test_load_refuses_a_file_it_could_not_write_before_it_begins(
    monkeypatch, capsys, tmp_path, name
):
    nowhere = tmp_path / "nowhere" / "file"
    arguments = _load("http://127.0.0.1:9", f"--{name}", str(nowhere))
    status, _, err = _run(monkeypatch, capsys, *arguments)
    assert status == 2
    assert err == f"tilemlp: {name}: must be in a directory that exists, is {nowhere}\n"
