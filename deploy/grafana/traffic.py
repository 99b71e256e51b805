"""Rows about requests: overview, traffic, queue and batching."""

from __future__ import annotations

from deploy.grafana.panels import Panels, distribution, labels, lines, number
from deploy.grafana.promql import ONE, quantiles, rate

_RED_BELOW_1 = ((None, "red"), (1.0, "green"))


def overview() -> Panels:
    """One line of numbers: is it well, is it busy."""
    return [
        number(
            "Ready",
            "Instances that accept requests.",
            "none",
            f"sum(mlp_ready{{{ONE}}})",
            steps=_RED_BELOW_1,
        ),
        number(
            "Engine healthy",
            "1 while the engine of every instance computes right, by its last self-test.",
            "none",
            f"min(mlp_engine_healthy{{{ONE}}})",
            steps=_RED_BELOW_1,
        ),
        number(
            "Alerts firing",
            "Of deploy/prometheus/rules/alerts.yml; deploy/runbook.md says what to do.",
            "none",
            'count(ALERTS{alertname=~"Tilemlp.+", alertstate="firing"}) or vector(0)',
            steps=((None, "green"), (1.0, "red")),
        ),
        number(
            "Requests",
            "Per second over five minutes, however they ended.",
            "reqps",
            f"sum(instance:mlp_requests:rate5m{{{ONE}}})",
        ),
        number(
            "p99",
            "Of answered requests over five minutes, of the slowest instance.",
            "s",
            f"max(instance:mlp_request_duration_seconds:p99_rate5m{{{ONE}}})",
        ),
        number(
            "Failing",
            "Share of requests that ended with 5xx over five minutes, of the worst instance.",
            "percentunit",
            f"max(instance:mlp_request_errors:ratio_rate5m{{{ONE}}})",
            steps=((None, "green"), (0.01, "red")),
        ),
        number(
            "Busy",
            "Share of the time in which devices worked on batches, over five minutes.",
            "percentunit",
            f"avg(instance:mlp_gpu_busy:ratio_rate5m{{{ONE}}})",
        ),
        number(
            "MFU",
            "Model FLOPs per second of the dense peak, over five minutes; GPUs of known peak only.",
            "percentunit",
            f"avg(instance:mlp_mfu:ratio_rate5m{{{ONE}}})",
        ),
        labels("What runs", "Version, backend, device and model.", f"mlp_build_info{{{ONE}}}"),
    ]


def traffic() -> Panels:
    """What clients send and what they see."""
    return [
        lines(
            "Requests by outcome",
            "Each request is counted once, when it ends; the words are the error codes of the API.",
            "reqps",
            (f"sum by (outcome) ({rate('mlp_requests_total')}) > 0", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Latency",
            "From a request's headers to its answer handed to the transport; answered requests.",
            "s",
            *quantiles("mlp_request_duration_seconds"),
            ("objective:mlp_request_duration_seconds:p99", "objective for p99"),
        ),
        lines(
            "Requests by API",
            "/mlp and the Open Inference Protocol under /v2.",
            "reqps",
            (f"sum by (api) ({rate('mlp_requests_total')})", "{{api}}"),
            stacked=True,
        ),
        lines(
            "Tokens",
            "Rows computed per second.",
            "short",
            (f"sum({rate('mlp_tokens_total')})", "tokens per second"),
        ),
        lines(
            "Shared memory traffic",
            "Inputs taken from clients' shared memory, and answers put there, instead of sent.",
            "Bps",
            (
                f"sum by (direction) ({rate('mlp_shared_memory_moved_bytes_total')})",
                "{{direction}}",
            ),
        ),
        lines(
            "Shared memory per region",
            "Mean size of the regions that clients have registered.",
            "bytes",
            (
                f"mlp_shared_memory_bytes{{{ONE}}} / mlp_shared_memory_regions{{{ONE}}}",
                "{{instance}}",
            ),
        ),
    ]


def queue() -> Panels:
    """How long requests wait, and in what company they leave the queue."""
    waiting = [
        (f"mlp_queue_{what}{{{ONE}}} / mlp_queue_{what}_limit{{{ONE}}}", what + " {{instance}}")
        for what in ("tokens", "bytes")
    ]
    return [
        distribution(
            "Tokens per batch",
            "Batches that were started, by their rows.",
            "short",
            "sum by (le) (increase(mlp_batch_tokens_bucket" + f"{{{ONE}}}[$__rate_interval]))",
        ),
        distribution(
            "Requests per batch",
            "Batches that were started, by their requests.",
            "short",
            "sum by (le) (increase(mlp_batch_requests_bucket" + f"{{{ONE}}}[$__rate_interval]))",
        ),
        lines(
            "Batches by trigger",
            "Why they left the queue: full, idle (the engine was free), delay, drain, retry.",
            "ops",
            (f"sum by (trigger) ({rate('mlp_batches_total')})", "{{trigger}}"),
            span=8,
            stacked=True,
        ),
        lines(
            "Queue delay",
            "From a request's rows being complete to its batch being started.",
            "s",
            *quantiles("mlp_stage_duration_seconds", 'stage="queue"'),
            span=8,
        ),
        lines(
            "Queue against its bounds",
            "Rows and body bytes admitted and not yet running; beyond 100 % requests get 429.",
            "percentunit",
            *waiting,
            span=8,
        ),
        lines(
            "Waiting requests",
            "Admitted and not yet running, those included whose bodies are still arriving.",
            "short",
            (f"mlp_queue_requests{{{ONE}}}", "{{instance}}"),
        ),
        lines(
            "p99 by stage",
            "Receive, decode, queue and encode per request; h2d, compute and d2h per batch.",
            "s",
            quantiles("mlp_stage_duration_seconds", by="stage")[2],
        ),
    ]
