"""What a load test found, as values: for people see `render`, for programs `to_json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from service.load.answers import TOLERANCE
from service.load.histogram import LogHistogram
from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.tally import Tally

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of times in seconds; quantiles within 0.4 %, mean and largest exact."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p999_s: float
    max_s: float

    @classmethod
    def of(cls, histogram: LogHistogram) -> Quantiles | None:
        """Quantiles of a histogram of nanoseconds; None if it is empty."""
        if not histogram.count:
            return None
        p50, p90, p99, p999 = (
            (histogram.quantile(fraction) or 0.0) / _NS for fraction in (0.5, 0.9, 0.99, 0.999)
        )
        mean_s = histogram.total / histogram.count / _NS
        return cls(histogram.count, mean_s, p50, p90, p99, p999, histogram.maximum / _NS)


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """Tokens in the batches that requests were part of, each batch once per request in it."""

    mean: float
    p50: float
    max: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load.

    Attributes:
        connections: Connections in all.
        rate_per_s: Open loop: arrivals per second asked for.
        ok: No error, no wrong answer, and at least one right one.
        latency: Of right answers, from when the request was due to the answer's last byte; None
            without a right answer.
        latency_by_rows: The same per tokens in the request.
        wait: Open loop: the part of it before the request was sent.
        requests_per_s: Right answers per second.
        tokens_per_s: Rows in them.
        sent_bytes_per_s: Body bytes of their requests.
        received_bytes_per_s: Body bytes of the answers.
        sent: Requests sent in all, the warm-up's included, as in all that follows.
        errors: All that was not a right answer.
        wrong_answers: Errors that came with status 200.
        statuses: Answers by status and error code.
        faults: Other errors by kind.
        examples: A message per status and kind.
        compared_fully: Answers compared in every element.
        compared_in_part: Larger answers compared in some rows.
        batch_tokens: None if the service does not say.
        kernels: Requests by kernel.
        server_timing_s: Means of the service's own times.
        most_backlog: Open loop: most requests that waited for a connection at once.
        cpu_shares: CPU seconds per second that each client process used.
    """

    connections: int
    rate_per_s: float | None
    ok: bool
    latency: Quantiles | None
    latency_by_rows: Mapping[int, Quantiles | None]
    wait: Quantiles | None
    requests_per_s: float
    tokens_per_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    sent: int
    errors: int
    wrong_answers: int
    statuses: Mapping[str, int]
    faults: Mapping[str, int]
    examples: Mapping[str, str]
    compared_fully: int
    compared_in_part: int
    batch_tokens: BatchTokens | None
    kernels: Mapping[str, int]
    server_timing_s: Mapping[str, float]
    most_backlog: int
    cpu_shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A whole load test.

    Attributes:
        options: What was asked for.
        date_utc: Start, ISO 8601.
        model: Name of the model.
        hidden_size: Columns of the requests.
        width: Columns of the answers.
        server: The service's metadata (`/v2`).
        model_metadata: The model's (`/v2/models/{model}`).
        versions: Of the generator and what it stands on.
        host: The client's machine.
        results: One per load, in ascending order.
    """

    options: LoadOptions
    date_utc: str
    model: str
    hidden_size: int
    width: int
    server: Mapping[str, Any]
    model_metadata: Mapping[str, Any]
    versions: Mapping[str, str]
    host: Mapping[str, Any]
    results: tuple[LoadResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every load got right answers and nothing else."""
        return all(result.ok for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The report in types that JSON knows; the API key is not in it."""
        options = asdict(self.options)
        options["api_key"] = None if self.options.api_key is None else "***"
        options["rows"] = [{"tokens": rows, "weight": weight} for rows, weight in self.options.rows]
        document = asdict(self)
        document["options"] = {name: _plain(value) for name, value in options.items()}
        return {"ok": self.ok, "tolerance_of_row_max": TOLERANCE, **document}


def make_result(load: Load, tally: Tally, duration_s: float) -> LoadResult:
    """A load's result from what all processes counted."""
    latency = Quantiles.of(tally.latency())
    batch_tokens = tally.batch_tokens
    return LoadResult(
        connections=load.connections,
        rate_per_s=load.rate_per_s,
        ok=latency is not None and tally.errors == 0,
        latency=latency,
        latency_by_rows={
            rows: Quantiles.of(histogram) for rows, histogram in sorted(tally.latency_ns.items())
        },
        wait=Quantiles.of(tally.wait_ns),
        requests_per_s=tally.requests / duration_s,
        tokens_per_s=tally.tokens / duration_s,
        sent_bytes_per_s=tally.sent_bytes / duration_s,
        received_bytes_per_s=tally.received_bytes / duration_s,
        sent=tally.sent,
        errors=tally.errors,
        wrong_answers=tally.wrong_answers,
        statuses=dict(sorted(tally.statuses.items())),
        faults={fault.value: count for fault, count in tally.faults.items()},
        examples=dict(tally.examples),
        compared_fully=tally.compared_fully,
        compared_in_part=tally.compared_in_part,
        batch_tokens=BatchTokens(
            mean=batch_tokens.total / batch_tokens.count,
            p50=batch_tokens.quantile(0.5) or 0.0,
            max=batch_tokens.maximum,
        )
        if batch_tokens.count
        else None,
        kernels=dict(tally.kernels.most_common()),
        server_timing_s={
            name: total / count / 1e3 for name, (total, count) in tally.server_timing.items()
        },
        most_backlog=tally.most_backlog,
        cpu_shares=tally.cpu_shares,
    )


def write_json(report: LoadReport, path: Path) -> None:
    """Write the whole report.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(report.to_json(), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
