"""One thing, one name: metrics and settings in code, dashboard, rules, manifests and documents."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import service.metrics
from service.bench.stub import StubEngine
from service.config import Settings
from service.metrics import Metrics
from service.runtime import Runtime
from tests.deploy.files import DEPLOY, ROOT, load_yaml, panel_queries, readme_queries, rules
from tests.deploy.gpu_exporter import GPU_ONLY
from tests.deploy.promql import metrics

RECORDED = {rule["record"] for rule in rules("record")}
# What Prometheus itself makes.
OF_PROMETHEUS = {"up", "ALERTS"}
_A_METRIC = re.compile(r"(?<![\w/:$])(?:(?:instance|objective):)?mlp_[a-z0-9_]+(?::[a-z0-9_]+)*")
_A_SETTING = re.compile(r"\bMLP_[A-Z0-9_]+\b")


def _metrics() -> Metrics:
    """Of a service on a device of known peak."""
    engine = StubEngine()
    engine.peak_flops = 1.0
    return Runtime(Settings(), engine).metrics


def test_the_stand_in_has_the_names_that_the_service_has_on_a_gpu():
    gauges = getattr(service.metrics, "GPU_GAUGES", None)
    if gauges is None:
        pytest.skip("the code has no NVML gauges yet; their names are agreed")
    assert set(GPU_ONLY) - {"mlp_gpu_peak_flops"} == set(gauges)


@cache
def exported() -> set[str]:
    """Every sample name, those included that only a GPU has."""
    text = _metrics().render().decode()
    samples = {s.name for f in text_string_to_metric_families(text) for s in f.samples}
    return samples | set(GPU_ONLY)


@cache
def families() -> set[str]:
    """The metrics as the README names them, without `_bucket` and the like."""
    return {name.partition("{")[0] for name, _, _ in _metrics().catalogue()} | set(GPU_ONLY)


def _family(sample: str) -> str:
    return sample if sample in families() else re.sub(r"_(bucket|sum|count)$", "", sample)


def documents() -> list[Path]:
    """Whatever people or machines read besides code."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.svg")]
    found += [*ROOT.glob("docker-compose*.yml"), *ROOT.glob("Dockerfile*"), *ROOT.glob("compose/*")]
    found += [*DEPLOY.glob("*.md"), *DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")]
    return sorted(path for path in found if path.is_file())


QUERIES = [
    *((str(query), query.expr) for query in panel_queries()),
    *((rule["record"], rule["expr"]) for rule in rules("record")),
    *((rule["alert"], rule["expr"]) for rule in rules("alert")),
    *(("README", expr) for expr in readme_queries()),
]


@pytest.mark.parametrize(("where", "expr"), QUERIES)
def test_a_query_reads_metrics_that_exist(where: str, expr: str):
    assert metrics(expr) - exported() - RECORDED - OF_PROMETHEUS == set()


@pytest.mark.parametrize("name", sorted(families()))
def test_a_metric_is_on_the_dashboard_or_in_a_rule(name: str):
    shown = {_family(metric) for _, expr in QUERIES for metric in metrics(expr)}
    assert name in shown


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_series_is_used(name: str):
    used = [expr for where, expr in QUERIES if where != name]
    assert any(name in metrics(expr) for expr in used)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_metrics_and_settings_that_exist(path: Path):
    text = path.read_text()
    known = exported() | families() | RECORDED
    assert {name for name in _A_METRIC.findall(text) if name not in known} == set()
    settings = {f"MLP_{name.upper()}" for name in Settings.model_fields}
    assert set(_A_SETTING.findall(text)) - settings == set()


def test_the_search_finds_what_is_wrong():
    assert _A_METRIC.findall("`mlp_redy` and instance:mlp_x:y, rate(mlp_z_total[1m])") == [
        "mlp_redy", "instance:mlp_x:y", "mlp_z_total",
    ]  # fmt: skip
    assert _A_METRIC.findall("POST localhost/mlp_x, $mlp_y") == []
    assert _A_SETTING.findall("${MLP_PROT:-8000} MLP_… XMLP_A") == ["MLP_PROT"]
    assert len(documents()) > 10
    assert len(QUERIES) > 50


def test_the_autoscaler_reads_a_metric_that_exists():
    hpa = load_yaml(DEPLOY / "kubernetes" / "horizontalpodautoscaler.yaml")
    (metric,) = hpa["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in families()
