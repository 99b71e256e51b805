"""The PromQL that many panels share."""

from __future__ import annotations

Query = tuple[str, str]
"""PromQL and the legend of its series."""

ONE = 'instance=~"$instance"'
"""Matches what is chosen at the top of the dashboard."""


def rate(metric: str, matchers: str = "") -> str:
    """Of a counter, per second, by all of its labels."""
    chosen = f"{ONE}, {matchers}" if matchers else ONE
    return f"rate({metric}{{{chosen}}}[$__rate_interval])"


def quantiles(metric: str, matchers: str = "", by: str = "") -> list[Query]:
    """p50, p90 and p99 of a histogram over all chosen instances."""
    labels_kept = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels_kept}) ({rate(metric + '_bucket', matchers)})"
    legend = f" {{{{{by}}}}}" if by else ""
    return [
        (f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}{legend}")
        for share in (0.5, 0.9, 0.99)
    ]
