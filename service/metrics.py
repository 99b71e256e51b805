"""Every metric of the service, its buckets and its label values, in one place.

Counts are kept in plain Python numbers and handed to prometheus_client when somebody scrapes: its
own `observe` costs 2 µs and takes locks, these cost 0.2 µs and need none, because **everything
here is updated from the event loop's thread only**. Engine threads report through the batcher.

Nothing is labelled by request, shape or raw path; all label values are known at start, so every
series exists from the first scrape on. What front ends count is in service.counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from service.counts import APIS, DURATION_BUCKETS, FRONT_STAGES, FrontCounts, Histogram, add_up

# Kernels: 10 µs (decode of a small model) to 0.16 s (a full batch on a CPU).
KERNEL_BUCKETS = tuple(10e-6 * 2.0**k for k in range(15))
TOKEN_BUCKETS = tuple(2.0**k for k in range(18))
REQUEST_BUCKETS = tuple(2.0**k for k in range(13))

TRIGGERS = ("full", "idle", "delay", "drain", "retry")
STAGES = ("receive", "decode", "queue", "h2d", "compute", "d2h", "encode")
DIRECTIONS = ("in", "out")
GPU_GAUGES = {
    "mlp_gpu_utilization_ratio": "Share of NVML's last sampling period in which a kernel ran.",
    "mlp_gpu_memory_used_bytes": "Memory in use on the GPU, by whichever process.",
    "mlp_gpu_power_watts": "Power draw of the GPU.",
    "mlp_gpu_sm_clock_hertz": "Clock of the multiprocessors.",
}


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class _Family:
    """Children of one metric by label values; all of them made at start."""

    def __init__(self, name: str, help_text: str, **labels: Sequence[str]) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.keys = list(product(*labels.values()))


class CounterFamily(_Family):
    """Counters by label values."""

    def __init__(self, name: str, help_text: str, **labels: Sequence[str]) -> None:
        super().__init__(name, help_text, **labels)
        self.children = {key: Counter() for key in self.keys}

    def __getitem__(self, key: str | tuple[str, ...]) -> Counter:
        return self.children[(key,) if isinstance(key, str) else key]

    def collect(self) -> Metric:
        """The family as prometheus_client exposes it."""
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for key, child in self.children.items():
            family.add_metric(key, child.value)
        return family


class HistogramFamily(_Family):
    """Histograms by label values, with the same buckets."""

    def __init__(
        self, name: str, help_text: str, bounds: Sequence[float], **labels: Sequence[str]
    ) -> None:
        super().__init__(name, help_text, **labels)
        self.children = {key: Histogram(bounds) for key in self.keys}

    def __getitem__(self, key: str | tuple[str, ...]) -> Histogram:
        return self.children[(key,) if isinstance(key, str) else key]

    def collect(self) -> Metric:
        """The family as prometheus_client exposes it."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for key, child in self.children.items():
            family.add_metric(key, child.buckets(), child.sum)
        return family


def _by_label(name: str, help_text: str, label: str, histograms: Mapping[str, Histogram]) -> Metric:
    """Histograms by the values of one label, as prometheus_client exposes them."""
    family = HistogramMetricFamily(name, help_text, labels=(label,))
    for value, histogram in histograms.items():
        family.add_metric((value,), histogram.buckets(), histogram.sum)
    return family


class Metrics:
    """The registry of one service, and one method per thing that happens.

    Args:
        outcomes: Every end a request can have: `ok` and the codes of service.errors.
        kernels: Every kernel name the engine can report.
        build: Labels of `mlp_build_info`.
        peak_flops: Dense peak FLOP/s of the device; None leaves `mlp_gpu_peak_flops` out, so that
            an MFU expression has no value rather than a wrong one.
    """

    def __init__(
        self,
        *,
        outcomes: Sequence[str],
        kernels: Sequence[str],
        build: Mapping[str, str],
        peak_flops: float | None,
    ) -> None:
        self._outcomes = tuple(outcomes)
        self.front = FrontCounts(outcomes)
        self._fronts = [self.front]
        # What is touched for every request and batch, looked up once; those of front ends are
        # added up at a scrape.
        self._stages = {
            stage: self.front.stages[stage]
            if stage in FRONT_STAGES
            else Histogram(DURATION_BUCKETS)
            for stage in STAGES
        }
        self._kernel_duration = HistogramFamily(
            "mlp_kernel_duration_seconds",
            "Device time of one kernel launch; of two that overlap, to and from the end of the "
            "first.",
            KERNEL_BUCKETS,
            kernel=kernels,
        )
        self._kernel_launches = CounterFamily(
            "mlp_kernel_launches", "Kernel launches.", kernel=kernels
        )
        self._batch_tokens = HistogramFamily(
            "mlp_batch_tokens", "Rows of a batch that was started.", TOKEN_BUCKETS
        )
        self._batch_requests = HistogramFamily(
            "mlp_batch_requests", "Requests of a batch that was started.", REQUEST_BUCKETS
        )
        self._batches = CounterFamily(
            "mlp_batches",
            "Batches started, by why they left the queue: full, idle (the engine was free), delay "
            "(max_queue_delay_s passed), drain, retry (a member of a failed batch, alone).",
            trigger=TRIGGERS,
        )
        self._tokens = CounterFamily("mlp_tokens", "Rows computed by batches that succeeded.")
        self._flops = CounterFamily(
            "mlp_flops", "Model FLOPs of batches that succeeded; MFU is rate(this) / peak."
        )
        self._busy = CounterFamily(
            "mlp_gpu_busy_seconds",
            "Seconds in which kernels ran, between events around each: copies and gaps do not "
            "count, but part of a launch does where the host is late with it, as with large "
            "batches of kernels that take microseconds. The mean of several devices.",
        )
        self._shared_memory = CounterFamily(
            "mlp_shared_memory_moved_bytes",
            "Bytes of inputs (in) and answers (out) in clients' shared memory.",
            direction=DIRECTIONS,
        )
        self._families: list[CounterFamily | HistogramFamily] = [
            value
            for value in vars(self).values()
            if isinstance(value, (CounterFamily, HistogramFamily))
        ]
        self._one_batch_tokens = self._batch_tokens[()]
        self._one_batch_requests = self._batch_requests[()]
        self._one_tokens, self._one_flops = self._tokens[()], self._flops[()]
        self._one_busy = self._busy[()]
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []
        self._read_gpus: Callable[[], Mapping[str, Mapping[str, float]]] = dict
        self._build = dict(build)
        if peak_flops is not None:
            self.gauge(
                "mlp_gpu_peak_flops",
                "Dense peak FLOP/s of the device, or of all together.",
                lambda: peak_flops,
            )
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read from its owner at each scrape."""
        self._gauges.append((name, help_text, read))

    def gpus(self, read: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Show GPU_GAUGES, by GPU index, as `read` has them at each scrape; a missing one is not.

        `read` must not block.
        """
        self._read_gpus = read

    def add_front(self, counts: FrontCounts) -> None:
        """Add what a front end in another process counts, from now on, to every scrape."""
        self._fronts.append(counts)

    def gathered(self) -> tuple[int, int, int]:
        """Requests, rows and bytes of rows that wait in front ends, outside the queue."""
        return add_up(self._outcomes, self._fronts).gathered

    def request_ended(self, api: str, outcome: str, duration_s: float) -> None:
        """A tensor request of this process has ended."""
        self.front.request_ended(api, outcome, duration_s)

    def stage(self, stage: str, duration_s: float, requests: int = 1) -> None:
        """One stage of a request, or of several that travel as one, is over."""
        self._stages[stage].observe(duration_s, requests)

    def shared_memory_moved(self, direction: str, nbytes: int) -> None:
        """An input was taken from clients' memory, or an answer put there."""
        self._shared_memory.children[direction,].value += nbytes

    def batch_started(self, trigger: str, tokens: int, requests: int) -> None:
        """A batch left the queue for the engine."""
        self._batches.children[trigger,].value += 1
        self._one_batch_tokens.observe(tokens)
        self._one_batch_requests.observe(requests)

    def batch_succeeded(
        self,
        *,
        tokens: int,
        flops: int,
        busy_s: float,
        kernels: Iterable[tuple[str, float]],
        stages: Mapping[str, float],
    ) -> None:
        """The engine has answered a batch."""
        self._one_tokens.value += tokens
        self._one_flops.value += flops
        self._one_busy.value += busy_s
        for kernel, seconds in kernels:
            self._kernel_launches.children[kernel,].value += 1
            self._kernel_duration.children[kernel,].observe(seconds)
        for stage, seconds in stages.items():
            self._stages[stage].observe(seconds)

    def statistics(self) -> dict[str, int]:
        """What the v2 statistics document reports: counts, and `…_ns` for their total times."""
        durations = {
            "queue": self._stages["queue"],
            "compute_input": self._stages["h2d"],
            "compute_infer": self._stages["compute"],
            "compute_output": self._stages["d2h"],
        }
        fronts = add_up(self._outcomes, self._fronts)
        found = {
            "last_inference_ms": int(fronts.last_ok_unix_s * 1e3),
            "inference": int(self._tokens[()].value),
            "execution": int(sum(child.value for child in self._batches.children.values())),
            "success": sum(fronts.durations[api].count for api in APIS),
            "success_ns": int(sum(fronts.durations[api].sum for api in APIS) * 1e9),
        }
        ended = sum(fronts.requests(*key) for key in product(APIS, self._outcomes))
        found["fail"] = int(ended) - found["success"]
        for name, histogram in durations.items():
            found[name], found[f"{name}_ns"] = histogram.count, int(histogram.sum * 1e9)
        return found

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        yield from self._collect_requests()
        for family in self._families:
            yield family.collect()
        for name, help_text, read in self._gauges:
            yield GaugeMetricFamily(name, help_text, value=read())
        yield from self._collect_gpus()
        build = GaugeMetricFamily("mlp_build_info", "1, with what runs.", labels=list(self._build))
        build.add_metric(list(self._build.values()), 1.0)
        yield build

    def _collect_requests(self) -> Iterable[Metric]:
        """What the front ends have counted, one or several of them."""
        fronts = add_up(self._outcomes, self._fronts)
        requests = CounterFamily(
            "mlp_requests",
            "Tensor requests by how they ended; each counted once, when it ends.",
            api=APIS,
            outcome=self._outcomes,
        )
        for api, outcome in requests.keys:
            requests[api, outcome].value = fronts.requests(api, outcome)
        yield requests.collect()
        yield _by_label(
            "mlp_request_duration_seconds",
            "From the request's headers to the answer handed to the transport; ok requests only.",
            "api",
            fronts.durations,
        )
        yield _by_label(
            "mlp_stage_duration_seconds",
            "Time per stage: receive, decode, queue and encode per request; h2d, compute and d2h "
            "per batch.",
            "stage",
            self._stages | fronts.stages,
        )

    def _collect_gpus(self) -> Iterable[Metric]:
        readings = self._read_gpus()
        for name, help_text in GPU_GAUGES.items():
            family = GaugeMetricFamily(name, help_text, labels=("gpu",))
            for gpu, values in readings.items():
                if name in values:
                    family.add_metric((gpu,), values[name])
            if family.samples:
                yield family

    def render(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self.registry)

    def catalogue(self) -> list[tuple[str, str, str]]:
        """(name with labels, type, help) of every metric of ours, for the README."""
        rows = []
        for metric in self.collect():
            suffix = "_total" if metric.type == "counter" else ""
            labels = sorted({name for s in metric.samples for name in s.labels} - {"le"})
            braces = "{" + ",".join(labels) + "}" if labels else ""
            rows.append((metric.name + suffix + braces, metric.type, metric.documentation))
        return rows
