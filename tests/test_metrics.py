"""Every metric under its promised name, type and labels; and every number that it shows."""

from __future__ import annotations

import math
import time

import pytest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from service.cgroups import memory_limit_bytes
from service.config import Settings
from service.errors import outcomes
from service.metrics import Metrics
from service.routes.health import EXPOSITION
from service.runtime import Runtime
from tests.engines import FakeEngine

APIS = {"mlp", "v2"}
STAGES = {"receive", "decode", "queue", "h2d", "compute", "d2h", "encode"}
TRIGGERS = {"full", "idle", "delay", "drain", "retry"}
KERNELS = {"one", "two"}
OUTCOMES = {
    "ok", "internal", "invalid", "unauthorized", "not_found", "not_acceptable", "receive_timeout",
    "too_large", "unsupported_type", "queue_full", "cancelled", "engine_error", "engine_dead",
    "unavailable", "deadline",
}  # fmt: skip

# What the design promises, written down a second time: type, and the values of each label.
PROMISED: dict[str, tuple[str, dict[str, set[str]]]] = {
    "mlp_requests": ("counter", {"api": APIS, "outcome": OUTCOMES}),
    "mlp_request_duration_seconds": ("histogram", {"api": APIS}),
    "mlp_stage_duration_seconds": ("histogram", {"stage": STAGES}),
    "mlp_kernel_duration_seconds": ("histogram", {"kernel": KERNELS}),
    "mlp_kernel_launches": ("counter", {"kernel": KERNELS}),
    "mlp_batch_tokens": ("histogram", {}),
    "mlp_batch_requests": ("histogram", {}),
    "mlp_batches": ("counter", {"trigger": TRIGGERS}),
    "mlp_tokens": ("counter", {}),
    "mlp_flops": ("counter", {}),
    "mlp_gpu_busy_seconds": ("counter", {}),
    "mlp_gpu_peak_flops": ("gauge", {}),
    "mlp_queue_requests": ("gauge", {}),
    "mlp_queue_tokens": ("gauge", {}),
    "mlp_queue_bytes": ("gauge", {}),
    "mlp_queue_tokens_limit": ("gauge", {}),
    "mlp_queue_bytes_limit": ("gauge", {}),
    "mlp_memory_used_bytes": ("gauge", {}),
    "mlp_memory_limit_bytes": ("gauge", {}),
    "mlp_engine_healthy": ("gauge", {}),
    "mlp_ready": ("gauge", {}),
    "mlp_shared_memory_moved_bytes": ("counter", {"direction": {"in", "out"}}),
    "mlp_shared_memory_regions": ("gauge", {}),
    "mlp_shared_memory_bytes": ("gauge", {}),
}
BUILD_LABELS = {"version", "backend", "device", "model", "python", "reason"}


class TwoKernelEngine(FakeEngine):
    kernels = ("one", "two")
    peak_flops = 989e12


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(Settings(), TwoKernelEngine())


@pytest.fixture
def metrics(runtime: Runtime) -> Metrics:
    return runtime.metrics


def scrape(metrics: Metrics) -> dict[str, Metric]:
    """The exposition, as a scraper reads it."""
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None, f"no series {name} {labels}"
    return found


def test_names_types_and_labels_are_the_promised_ones_before_anything_happens(metrics: Metrics):
    ours = {name: family for name, family in scrape(metrics).items() if name.startswith("mlp_")}
    build = ours.pop("mlp_build_info")
    assert set(ours) == set(PROMISED)
    for name, (kind, labels) in PROMISED.items():
        family = ours[name]
        assert family.type == kind, name
        assert len(family.documentation) > 10, name
        series = [dict(sample.labels) for sample in family.samples]
        for label, values in labels.items():
            assert {labels_of[label] for labels_of in series} == values, name
        assert {label for s in series for label in s} - {"le"} == set(labels), name
        # All combinations exist, with their first value, so that a rate sees the first event.
        combinations = math.prod(map(len, labels.values()))
        totals = [s for s in family.samples if not s.name.endswith(("_bucket", "_sum"))]
        assert len(totals) == combinations, name
        if kind != "gauge":
            assert {sample.value for sample in family.samples} == {0.0}, name
    assert build.type == "gauge"
    assert [(set(s.labels), s.value) for s in build.samples] == [(BUILD_LABELS, 1.0)]


def test_counters_end_in_total_and_no_series_says_when_it_was_created(metrics: Metrics):
    for family in scrape(metrics).values():
        for sample in family.samples:
            assert not sample.name.endswith("_created")
            if family.type == "counter":
                assert sample.name.endswith("_total")


def test_the_process_is_described_too(metrics: Metrics):
    names = {"process_resident_memory_bytes", "process_open_fds", "python_info"}
    assert names <= set(scrape(metrics))
    assert EXPOSITION == CONTENT_TYPE_PLAIN_0_0_4


def test_an_unknown_peak_is_left_out():
    metrics = Runtime(Settings(), FakeEngine()).metrics
    assert "mlp_gpu_peak_flops" not in scrape(metrics)
    assert "mlp_gpu_peak_flops" not in {name for name, _, _ in metrics.catalogue()}


def test_a_known_peak_is_shown(metrics: Metrics):
    assert value(metrics, "mlp_gpu_peak_flops") == 989e12


def test_build_labels_survive_any_text():
    strange = 'a "quoted"\\ name\nin two lines – ×'
    metrics = Metrics(outcomes=("ok",), kernels=(), build={"model": strange}, peak_flops=None)
    (sample,) = scrape(metrics)["mlp_build_info"].samples
    assert sample.labels == {"model": strange}


def test_gauges_are_read_at_the_scrape(runtime: Runtime):
    metrics = runtime.metrics
    names = ("mlp_queue_requests", "mlp_queue_tokens", "mlp_queue_bytes")
    assert [value(metrics, name) for name in names] == [0, 0, 0]
    lease = runtime.admission.admit(3, 500)
    assert [value(metrics, name) for name in names] == [1, 3, 500]
    lease.release()
    assert [value(metrics, name) for name in names] == [0, 0, 0]
    health = ("mlp_ready", "mlp_engine_healthy")
    assert [value(metrics, name) for name in health] == [0, 1]
    runtime.health.serving()
    assert [value(metrics, name) for name in health] == [1, 1]
    runtime.health.dead(RuntimeError("x"))
    assert [value(metrics, name) for name in health] == [0, 0]


def test_the_bounds_are_shown_beside_what_they_bound():
    settings = Settings(max_queue_tokens=12345, max_batch_tokens=1, max_queue_bytes=1 << 30)
    metrics = Runtime(settings, FakeEngine()).metrics
    assert value(metrics, "mlp_queue_tokens_limit") == 12345
    assert value(metrics, "mlp_queue_bytes_limit") == 1 << 30
    assert value(metrics, "mlp_memory_limit_bytes") == memory_limit_bytes()


def test_a_request_is_counted_once_and_timed_if_it_was_answered(metrics: Metrics):
    metrics.request_ended("mlp", "ok", 0.25)
    metrics.request_ended("v2", "deadline", 9.0)
    samples = scrape(metrics)["mlp_requests"].samples
    counted = {(s.labels["api"], s.labels["outcome"]): s.value for s in samples if s.value}
    assert counted == {("mlp", "ok"): 1, ("v2", "deadline"): 1}
    assert value(metrics, "mlp_request_duration_seconds_sum", api="mlp") == 0.25
    assert value(metrics, "mlp_request_duration_seconds_count", api="v2") == 0


@pytest.mark.parametrize("outcome", outcomes())
def test_every_end_of_a_request_can_be_counted(metrics: Metrics, outcome: str):
    for api in APIS:
        metrics.request_ended(api, outcome, 1.0)
        assert value(metrics, "mlp_requests_total", api=api, outcome=outcome) == 1


def run_a_batch(metrics: Metrics) -> None:
    metrics.batch_started("full", 48, 3)
    metrics.batch_succeeded(
        tokens=48,
        flops=10**15 + 1,
        busy_s=0.5,
        kernels=[("one", 0.125), ("two", 0.25), ("one", 0.125)],
        stages={"h2d": 0.25, "compute": 0.5, "d2h": 0.125},
    )


def test_a_batch_is_counted(metrics: Metrics):
    run_a_batch(metrics)
    assert value(metrics, "mlp_batches_total", trigger="full") == 1
    assert value(metrics, "mlp_batch_tokens_bucket", le="32.0") == 0
    assert value(metrics, "mlp_batch_tokens_bucket", le="64.0") == 1
    assert value(metrics, "mlp_batch_requests_sum") == 3
    assert value(metrics, "mlp_tokens_total") == 48
    assert value(metrics, "mlp_flops_total") == 10**15 + 1
    assert value(metrics, "mlp_gpu_busy_seconds_total") == 0.5
    assert value(metrics, "mlp_kernel_launches_total", kernel="one") == 2
    assert value(metrics, "mlp_kernel_duration_seconds_sum", kernel="one") == 0.25
    assert value(metrics, "mlp_stage_duration_seconds_sum", stage="compute") == 0.5


def test_a_number_survives_the_text(metrics: Metrics):
    for seconds in (0.1 + 0.2, 1e-9):
        metrics.stage("queue", seconds)
    samples = scrape(metrics)["mlp_stage_duration_seconds"].samples
    sums = {s.labels["stage"]: s.value for s in samples if s.name.endswith("_sum")}
    assert sums == {**dict.fromkeys(STAGES, 0.0), "queue": 0.1 + 0.2 + 1e-9}


def test_an_unknown_label_value_is_refused_and_makes_no_series(metrics: Metrics):
    before = metrics.render().count(b"\nmlp_")
    with pytest.raises(KeyError):
        metrics.request_ended("mlp", "lunch", 1.0)
    with pytest.raises(KeyError):
        metrics.stage("lunch", 1.0)
    assert metrics.render().count(b"\nmlp_") == before


def test_statistics_before_the_first_request(metrics: Metrics):
    assert set(metrics.statistics().values()) == {0}


def test_statistics(metrics: Metrics):
    began_ms = time.time() * 1e3
    run_a_batch(metrics)
    metrics.batch_started("retry", 1, 1)
    metrics.stage("queue", 0.25)
    metrics.stage("queue", 0.5)
    metrics.request_ended("mlp", "ok", 1.0)
    metrics.request_ended("v2", "ok", 2.0)
    metrics.request_ended("v2", "queue_full", 4.0)
    found = metrics.statistics()
    assert began_ms - 1 <= found.pop("last_inference_ms") <= time.time() * 1e3
    assert found == {
        "inference": 48,
        "execution": 2,
        "success": 2,
        "success_ns": 3 * 10**9,
        "fail": 1,
        "queue": 2,
        "queue_ns": 750_000_000,
        "compute_input": 1,
        "compute_input_ns": 250_000_000,
        "compute_infer": 1,
        "compute_infer_ns": 500_000_000,
        "compute_output": 1,
        "compute_output_ns": 125_000_000,
    }


def test_the_catalogue_lists_what_is_exposed(metrics: Metrics):
    rows = metrics.catalogue()
    expected = {"mlp_build_info{" + ",".join(sorted(BUILD_LABELS)) + "}"}
    for name, (kind, labels) in PROMISED.items():
        suffix = "_total" if kind == "counter" else ""
        braces = "{" + ",".join(sorted(labels)) + "}" if labels else ""
        expected.add(name + suffix + braces)
    assert {name for name, _, _ in rows} == expected
    assert all(kind in ("counter", "gauge", "histogram") for _, kind, _ in rows)
    assert all(text.endswith(".") for _, _, text in rows)
