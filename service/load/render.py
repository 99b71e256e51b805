"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from service.load.options import LoadOptions, Transport
from service.load.report import LoadReport, LoadResult, Quantiles

# A client process this busy measures itself rather than the service.
_BUSY_SHARE = 0.85


def render_report(report: LoadReport) -> str:
    """The whole report; several lines without a newline at the end."""
    lines = [*describe_conditions(report), ""]
    if len(report.results) > 1:
        lines += [*_render_table(report.results), ""]
    else:
        lines += _render_details(report.results[0])
    for result in report.results:
        lines += _render_errors(result, len(report.results) > 1)
    busiest = max((share for r in report.results for share in r.cpu_shares), default=0.0)
    if busiest > _BUSY_SHARE:
        lines.append(
            f"warning: a client process used {busiest:.0%} of a core, so the client may be what "
            "was measured: use more processes, or another machine"
        )
    return "\n".join(lines)


def describe_conditions(report: LoadReport) -> list[str]:
    """Two lines that say what was measured and how."""
    options = report.options
    layer = "" if options.layer is None else f" layer {options.layer}"
    up_to = "up to " if options.sweep else ""
    loop = f"closed loop, {up_to}{options.connections} connections"
    if options.rate_per_s is not None:
        rate = f"{up_to}{options.rate_per_s:g} requests/s"
        loop = f"open loop, {rate} over {options.connections} connections"
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    return [
        f"{report.model}{layer} → {options.output.value}, {options.dtype.value} "
        f"[{_describe_rows(options)}, {report.hidden_size}] → [·, {report.width}] "
        f"at {options.address.authority}{options.address.prefix}{_describe_transport(options)}",
        f"{loop} from {processes}, {options.duration_s:g} s after {options.warm_up_s:g} s of "
        f"warm-up, seed {options.seed}, {report.date_utc[:10]}",
    ]


def format_time(seconds: float) -> str:
    """Three significant digits with the unit that suits."""
    if seconds < 1e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    return f"{_three_digits(seconds * 1e3)} ms" if seconds < 1 else f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def _describe_transport(options: LoadOptions) -> str:
    return ", tensors in shared memory" if options.transport is Transport.SHM else ""


def _describe_rows(options: LoadOptions) -> str:
    total = sum(weight for _, weight in options.rows)
    if len(options.rows) == 1:
        return str(options.rows[0][0])
    return " / ".join(f"{rows} ({weight / total:.3g})" for rows, weight in options.rows)


def _render_details(result: LoadResult) -> list[str]:
    lines = [("latency", _render_quantiles(result.latency))]
    if len(result.latency_by_rows) > 1:
        for rows, quantiles in result.latency_by_rows.items():
            lines.append((f"  {rows} rows", _render_quantiles(quantiles)))
    if result.wait is not None:
        lines.append(("in client", f"{_render_quantiles(result.wait)} (before sending)"))
        lines.append(("backlog", f"{result.most_backlog:,} requests at most"))
    lines.append(
        (
            "throughput",
            f"{result.requests_per_s:,.1f} requests/s, {result.tokens_per_s:,.0f} tokens/s, "
            f"{result.sent_bytes_per_s / 1e6:,.2f} MB/s sent, "
            f"{result.received_bytes_per_s / 1e6:,.2f} MB/s received",
        )
    )
    lines.append(("answers", _render_counts(result.statuses)))
    lines.append(
        (
            "compared",
            f"{result.compared_fully:,} right in full, {result.compared_in_part:,} in part, "
            f"{result.wrong_answers:,} wrong",
        )
    )
    if result.batch_tokens is not None:
        batch = result.batch_tokens
        text = f"{batch.mean:,.1f} tokens mean, {batch.p50:,.0f} p50, {batch.max:,} max per request"
        lines.append(("batches", text))
    if result.kernels:
        lines.append(("kernels", _render_counts(result.kernels)))
    if result.server_timing_s:
        times = (f"{name} {format_time(mean)}" for name, mean in result.server_timing_s.items())
        lines.append(("server", f"{', '.join(times)} (means)"))
    shares = ", ".join(f"{share:.0%}" for share in result.cpu_shares)
    lines.append(("client CPU", f"{shares} of a core"))
    return [f"{name:<12}{text}" for name, text in lines]


def _render_quantiles(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "no right answer"
    named = {
        "p50": quantiles.p50_s,
        "p90": quantiles.p90_s,
        "p99": quantiles.p99_s,
        "p99.9": quantiles.p999_s,
        "max": quantiles.max_s,
    }
    return "  ".join(f"{name} {format_time(value)}" for name, value in named.items())


def _render_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} × {count:,}" for name, count in counts.items()) or "none"


def _render_table(results: tuple[LoadResult, ...]) -> list[str]:
    head = ["connections", "rate/s", "requests/s", "tokens/s", "p50", "p90", "p99", "p99.9", "max"]
    rows = [[*head, "errors", "client CPU"]]
    for result in results:
        latency = result.latency
        times = (
            ["–"] * 5
            if latency is None
            else [
                format_time(value)
                for value in (
                    latency.p50_s,
                    latency.p90_s,
                    latency.p99_s,
                    latency.p999_s,
                    latency.max_s,
                )
            ]
        )
        rows.append(
            [
                f"{result.connections}",
                "–" if result.rate_per_s is None else f"{result.rate_per_s:,.0f}",
                f"{result.requests_per_s:,.1f}",
                f"{result.tokens_per_s:,.0f}",
                *times,
                f"{result.errors:,}",
                f"{sum(result.cpu_shares):.0%}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def _render_errors(result: LoadResult, is_one_of_many: bool) -> list[str]:
    counts = {**{s: n for s, n in result.statuses.items() if s != "200"}, **result.faults}
    if not counts:
        return []
    which = ""
    if is_one_of_many:
        rate = "" if result.rate_per_s is None else f", {result.rate_per_s:g}/s"
        which = f" at {result.connections} connections{rate}"
    lines = [f"errors{which}: {result.errors:,}, with {result.sent:,} requests sent"]
    for name, count in counts.items():
        lines.append(f"  {name} × {count:,}: {result.examples.get(name, '')}")
    return lines
