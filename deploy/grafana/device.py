"""Rows about what serves them: kernels, GPU, errors."""

from __future__ import annotations

from deploy.grafana.panels import Panels, lines
from deploy.grafana.promql import ONE, quantiles, rate


def kernels() -> Panels:
    """What the device does."""
    mfu = f"{rate('mlp_flops_total')} / mlp_gpu_peak_flops{{{ONE}}}"
    shares = f"sum by (kernel) ({rate('mlp_kernel_duration_seconds_sum')})"
    return [
        lines(
            "Launches by kernel",
            "Kernel launches per second.",
            "ops",
            (f"sum by (kernel) ({rate('mlp_kernel_launches_total')})", "{{kernel}}"),
            span=8,
            stacked=True,
        ),
        lines(
            "Time of a launch",
            "Device time of one launch.",
            "s",
            *quantiles("mlp_kernel_duration_seconds", by="kernel"),
            span=8,
        ),
        lines(
            "Device time by kernel",
            "Seconds of kernels per second.",
            "percentunit",
            (shares, "{{kernel}}"),
            span=8,
            stacked=True,
        ),
        lines(
            "FLOP/s",
            "Model FLOPs per second, and the dense peak of the device where it is known.",
            "flops",
            (rate("mlp_flops_total"), "{{instance}}"),
            (f"mlp_gpu_peak_flops{{{ONE}}}", "peak of {{instance}}"),
            span=8,
        ),
        lines(
            "MFU over time",
            "Model FLOPs per second of the dense peak, waiting included; GPUs of known peak only.",
            "percentunit",
            (mfu, "{{instance}}"),
            span=8,
            bounds=(0.0, 1.0),
        ),
        lines(
            "Busy share",
            "Share of the time in which the device worked on batches.",
            "percentunit",
            (rate("mlp_gpu_busy_seconds_total"), "{{instance}}"),
            span=8,
        ),
    ]


def gpu() -> Panels:
    """What NVML says; empty without a GPU."""
    readings = (
        ("Utilisation", "percentunit", "mlp_gpu_utilization_ratio", "in which a kernel ran"),
        ("Memory", "bytes", "mlp_gpu_memory_used_bytes", "of all processes on it"),
        ("Power", "watt", "mlp_gpu_power_watts", "drawn by the board"),
        ("SM clock", "hertz", "mlp_gpu_sm_clock_hertz", "which falls at the power limit"),
    )
    return [
        lines(
            title,
            f"By NVML, {remark}; empty without a GPU.",
            unit,
            (f"{metric}{{{ONE}}}", "{{instance}} GPU {{gpu}}"),
            span=6,
        )
        for title, unit, metric, remark in readings
    ]


def errors() -> Panels:
    """What goes wrong, and what it may be."""
    failed = rate("mlp_requests_total", 'outcome!="ok"')
    return [
        lines(
            "Requests without an answer",
            "By error code; cancelled means that the client left. Empty while there are none.",
            "reqps",
            (f"sum by (outcome) ({failed}) > 0", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Failing and refused",
            "Shares of requests over five minutes: ended with 5xx, and refused with 429.",
            "percentunit",
            (f"instance:mlp_request_errors:ratio_rate5m{{{ONE}}}", "5xx {{instance}}"),
            (f"instance:mlp_requests_refused:ratio_rate5m{{{ONE}}}", "429 {{instance}}"),
        ),
        lines(
            "Ready and healthy",
            "1 while requests are accepted, and while the engine computes right.",
            "none",
            (f"mlp_ready{{{ONE}}}", "ready {{instance}}"),
            (f"mlp_engine_healthy{{{ONE}}}", "healthy {{instance}}"),
            span=8,
            bounds=(0.0, 1.0),
        ),
        lines(
            "Restarts",
            "Within the hour before.",
            "none",
            (f"changes(process_start_time_seconds{{{ONE}}}[1h])", "{{instance}}"),
            span=8,
        ),
        lines(
            "Memory of the processes",
            "Resident bytes, what they share once, and what the container or machine allows.",
            "bytes",
            (f"mlp_memory_used_bytes{{{ONE}}}", "{{instance}}"),
            (f"mlp_memory_limit_bytes{{{ONE}}}", "limit of {{instance}}"),
            span=8,
        ),
    ]
