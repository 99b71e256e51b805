import importlib
import sys

import pytest

from service.errors import ConfigError
from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.plot import draw_report, plot_report
from service.load.run import run_load
from service.load.tally import Tally
from tests.load.fake_server import FakeServer
from tests.load.reports import make_report, make_sweep, make_tally


def test_a_sweep_becomes_a_png(tmp_path):
    path = tmp_path / "plot.png"
    with FakeServer() as server:
        report = run_load(
            LoadOptions(
                url=server.url, connections=3, sweep=True, duration_s=0.2, warm_up_s=0.0, quiet=True
            )
        )
    assert [result.connections for result in report.results] == [1, 2, 3]
    plot_report(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text"))]


def test_the_lines_are_the_quantiles_over_the_throughput():
    report = make_sweep()
    (axes,) = draw_report(report).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {
        name: [
            [result.requests_per_s, pytest.approx(getattr(result.latency, attribute) * 1e3)]
            for result in report.results
        ]
        for name, attribute in (("p50", "p50_s"), ("p90", "p90_s"), ("p99", "p99_s"))
    }


def test_everything_is_labelled_with_its_unit():
    figure = draw_report(make_sweep(errors_in_last=3))
    texts = texts_of(figure)
    assert "achieved throughput, requests/s" in texts
    assert "latency, ms" in texts
    assert {"1", "2", "4", "8", "16", "32\n3 errors"} <= set(texts)
    assert any("up to 32 connections" in text for text in texts)


def test_loads_of_the_open_loop_are_labelled_with_their_rate():
    loads = [(Load(4, rate), make_tally([1.0] * int(rate))) for rate in (100.0, 1000.0)]
    texts = texts_of(draw_report(make_report(*loads, rate_per_s=1000.0, sweep=True)))
    assert {"100/s", "1,000/s"} <= set(texts)


def test_loads_without_a_right_answer_are_left_out():
    loads = [(Load(1, None), make_tally([1.0])), (Load(2, None), Tally())]
    (axes,) = draw_report(make_report(*loads)).axes
    assert all(len(line.get_xydata()) == 1 for line in axes.get_lines())
    with pytest.raises(ConfigError, match="plot: needs at least one load with a right answer"):
        draw_report(make_report(loads[1]))


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "service.load.plot")
    with pytest.raises(
        ConfigError, match=r"plot: needs matplotlib \(pip install 'tilemlp\[plot\]'"
    ):
        importlib.import_module("service.load.plot")
