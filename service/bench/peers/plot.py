"""Requests per second of the compared servers, as a PNG beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from service.bench.peers.table import server_name
from service.bench.service_results import ServiceResults
from service.errors import ConfigError

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ConfigError(f"plot: needs matplotlib (pip install 'tilemlp[plot]'): {error}") from None

_COLORS = {
    "echo": "#b8c4cc",
    "tilemlp": "#2a6f97",
    "tilemlp (shm)": "#468faf",
    "litserve": "#d98f2b",
    "bentoml": "#c1432e",
    "rayserve": "#7b5ea7",
}


def plot_peers(folder: Path, gpu: str) -> Path:
    """Draw the comparison of one machine; returns the picture written."""
    results = ServiceResults(folder, gpu)
    _, rows = results.peers()
    picture = results.path.with_suffix(".png")
    # No date inside: the same results make the same file.
    draw_peers(rows).savefig(picture, format="png", metadata={"Software": None})
    return picture


def draw_peers(rows: Sequence[Mapping[str, str]]) -> Figure:
    """One group of bars for each case, on a logarithmic scale.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not rows:
        raise ConfigError("peers: must have been measured to be drawn, were not")
    cases = list(dict.fromkeys((row["model"], row["rows"], row["clients"]) for row in rows))
    figure = Figure(figsize=(2.2 * len(cases) + 2.4, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, case in enumerate(cases):
        found = [row for row in rows if (row["model"], row["rows"], row["clients"]) == case]
        _draw_case(axes, place, found)
    axes.set_yscale("log")
    axes.set_ylabel("requests per second")
    labels = [f"{model}\n{count} rows × {clients}" for model, count, clients in cases]
    axes.set_xticks(range(len(cases)), labels)
    handles, names = axes.get_legend_handles_labels()
    # Every case brings its bars; one of each is enough.
    unique = dict(zip(names, handles, strict=True))
    axes.legend(
        unique.values(), unique.keys(), frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_case(axes: Axes, place: int, rows: Sequence[Mapping[str, str]]) -> None:
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        name = server_name(row)
        left = place - 0.4 + (index + 0.5) * width
        height = float(row["requests_per_s"])
        axes.bar(left, height, 0.9 * width, color=_COLORS[name], label=name)
        axes.annotate(f"{height:,.0f}", (left, height), ha="center", va="bottom", fontsize=7)
