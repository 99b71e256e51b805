"""Every query of the dashboard, every rule and the README's queries, asked of a real Prometheus."""

from __future__ import annotations

import math
import re
import subprocess

import pytest

from tests.deploy.conftest import Watched
from tests.deploy.files import PanelQuery, panel_queries, readme_queries, rules, tool
from tests.deploy.gpu_exporter import GPU_ONLY
from tests.deploy.promql import metrics, selectors
from tests.servers import get

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Recorded from series that only a GPU has.
GPU_ONLY_RULES = {"instance:mlp_mfu:ratio_rate5m"}
# Panels that rightly stay at zero while all is well.
QUIET = {"Alerts firing", "Restarts"}


def is_gpu_only(expr: str) -> bool:
    return not metrics(expr).isdisjoint(GPU_ONLY_RULES | set(GPU_ONLY))


@pytest.mark.parametrize("query", panel_queries(), ids=str)
def test_a_panel_shows_something(watched: Watched, query: PanelQuery):
    gpu_only = is_gpu_only(query.expr)
    found = watched.series(query.expr, watched.gpu if gpu_only else watched.service)
    values = [value for _, series in found for value in series if math.isfinite(value)]
    assert values, "no data"
    assert query.panel in QUIET or any(values), "nothing but zeros"
    for label in re.findall(r"{{(\w+)}}", query.legend):
        assert all(label in series for series, _ in found), f"no label {label} for the legend"


@pytest.mark.parametrize("query", [q for q in panel_queries() if is_gpu_only(q.expr)], ids=str)
def test_a_panel_of_the_gpu_is_empty_without_one(watched: Watched, query: PanelQuery):
    assert watched.series(query.expr, watched.service) == []


def test_heat_maps_get_every_bucket(watched: Watched):
    for query in panel_queries():
        if query.legend == "{{le}}":
            bounds = {series["le"] for series, _ in watched.series(query.expr, watched.service)}
            assert {"1", "8", "64", "+Inf"} <= {re.sub(r"\.0$", "", bound) for bound in bounds}


def test_prometheus_evaluates_every_rule(watched: Watched):
    evaluated = {rule["name"]: rule for rule in watched.prometheus.rules()}
    written = [*(rule["record"] for rule in rules("record")), *(r["alert"] for r in rules("alert"))]
    assert sorted(evaluated) == sorted(written)
    for name, rule in evaluated.items():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), name


@pytest.mark.parametrize("name", [rule["record"] for rule in rules("record")])
def test_a_rule_records_something(watched: Watched, name: str):
    found = watched.prometheus.over(name, watched.start, watched.end)
    values = [value for _, series in found for value in series]
    assert values
    assert all(math.isfinite(value) for value in values)
    assert any(values), "nothing but zeros"
    if not name.startswith("objective:"):
        instances = {series["instance"] for series, _ in found}
        without_gpu = set() if name in GPU_ONLY_RULES else {watched.service}
        assert instances == {watched.gpu} | without_gpu


@pytest.mark.parametrize(
    ("alert", "selector"),
    [(rule["alert"], selector) for rule in rules("alert") for selector in selectors(rule["expr"])],
)
def test_what_an_alert_reads_is_there(watched: Watched, alert: str, selector: str):
    """Healthy, an alert's expression has no value; what it compares must have one."""
    assert watched.prometheus.over(selector, watched.start, watched.end)


@pytest.mark.parametrize("expr", readme_queries())
def test_a_query_of_the_readme_has_an_answer(watched: Watched, expr: str):
    found = watched.prometheus.over(expr, watched.start, watched.end)
    assert any(value > 0 for _, series in found for value in series if math.isfinite(value))


def test_the_exposition_is_well_formed(watched: Watched):
    _, text = get(watched.url, "/metrics")
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
