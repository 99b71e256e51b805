import io
import sys

import pytest
from rich.console import Console

from service.load.faults import Fault
from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.progress import LoadProgress, describe
from service.load.run import run_load
from service.load.tally import Tally
from tests.load.fake_server import FakeServer
from tests.load.reports import make_tally


def test_figures_under_way():
    tally = make_tally([2.0] * 99 + [8.0])
    tally.note_fault(Fault.TIMEOUT, "")
    assert describe(tally, 2.0) == "50 req/s  p50 2.00 ms  p99 2.00 ms  1 errors"


@pytest.mark.parametrize("measured_s", [-1.5, 0.0])
def test_the_warm_up_has_no_figures(measured_s):
    assert describe(make_tally([2.0]), measured_s) == "warming up  0 errors"
    assert describe(Tally(), 1.0) == "warming up  0 errors"


def test_each_load_has_a_line():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    options = LoadOptions(duration_s=4.0, warm_up_s=0.0)
    with LoadProgress(console, options) as progress:
        progress.begin(Load(3, None))
        progress.show(make_tally([2.0]))
        progress.begin(Load(8, 250.0))
        progress.show(make_tally([5.0]))
    shown = text.getvalue()
    assert "3 connections" in shown
    assert "250 requests/s" in shown
    assert "/4 s" in shown


@pytest.fixture
def run_on(monkeypatch):
    def run(is_terminal, **changes):
        error = io.StringIO()
        error.isatty = lambda: is_terminal
        monkeypatch.setattr(sys, "stderr", error)
        monkeypatch.setenv("TERM", "xterm")
        with FakeServer() as server:
            options = LoadOptions(
                url=server.url, connections=2, duration_s=0.3, warm_up_s=0.0, **changes
            )
            assert run_load(options).ok
        return error.getvalue()

    return run


def test_progress_is_shown_on_a_terminal(run_on):
    shown = run_on(True)
    assert "2 connections" in shown
    assert "0 errors" in shown


def test_quiet_is_silent_on_a_terminal(run_on):
    assert run_on(True, quiet=True) == ""


def test_without_a_terminal_it_is_silent(run_on):
    assert run_on(False) == ""
