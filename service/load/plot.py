"""Latency against load, as a PNG."""

from __future__ import annotations

from pathlib import Path

from service.errors import ConfigError
from service.load.render import describe_conditions
from service.load.report import LoadReport, LoadResult

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
except ImportError as error:
    raise ConfigError(f"plot: needs matplotlib (pip install 'tilemlp[plot]'): {error}") from None

_SERIES = (
    ("p99", "p99_s", "#c1432e", "^"),
    ("p90", "p90_s", "#d98f2b", "s"),
    ("p50", "p50_s", "#2a6f97", "o"),
)


def plot_report(report: LoadReport, path: Path) -> None:
    """Draw the report into a PNG file.

    Raises:
        ConfigError: no load got a right answer, so there is nothing to draw.
        OSError: the file cannot be written.
    """
    draw_report(report).savefig(path, format="png")


def draw_report(report: LoadReport) -> Figure:
    """p50, p90 and p99 of every load over the throughput it reached.

    Raises:
        ConfigError: no load got a right answer.
    """
    results = [result for result in report.results if result.latency is not None]
    if not results:
        raise ConfigError("plot: needs at least one load with a right answer, has none")
    figure = Figure(figsize=(9, 5.6), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    figure.suptitle("Latency against load", fontweight="bold", fontsize=13)
    axes.set_title("\n".join(describe_conditions(report)), fontsize=8.5, color="#444444")
    _draw(axes, results)
    _label_loads(axes, results)
    return figure


def _draw(axes: Axes, results: list[LoadResult]) -> None:
    rates = [result.requests_per_s for result in results]
    for name, attribute, colour, marker in _SERIES:
        times_ms = [getattr(result.latency, attribute) * 1e3 for result in results]
        axes.plot(rates, times_ms, marker=marker, color=colour, label=name, lw=1.6, ms=5)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.35, high)  # room for the labels under the lowest line
    axes.set_xlim(left=0, right=max(rates) * 1.1)
    axes.set_xlabel("achieved throughput, requests/s")
    axes.set_ylabel("latency, ms")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="#dddddd", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")


def _label_loads(axes: Axes, results: list[LoadResult]) -> None:
    """Write under each p50 point which load it was, and mark loads with errors."""
    for result in results:
        assert result.latency is not None
        text = str(result.connections)
        if result.rate_per_s is not None:
            text = f"{result.rate_per_s:,.5g}/s"
        axes.annotate(
            text if result.ok else f"{text}\n{result.errors:,} errors",
            (result.requests_per_s, result.latency.p50_s * 1e3),
            xytext=(6, -4),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=8,
            color="#2a6f97" if result.ok else "#c1432e",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
    what = "connections" if results[0].rate_per_s is None else "arrivals asked for"
    axes.annotate(
        f"numbers at p50: {what}",
        (0.995, 0.01),
        xycoords="axes fraction",
        ha="right",
        va="bottom",
        fontsize=8,
        color="#2a6f97",
    )
