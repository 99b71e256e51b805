"""Requests per second of the compared servers and over our workers, as a PNG beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from service.bench.peers.table import OURS, case_of, requests_per_s, server_name
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
    """One group of bars for each case, and how our service scales where that was measured.

    A bar is a server with the workers that served it best.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not rows:
        raise ConfigError("peers: must have been measured to be drawn, were not")
    cases = list(dict.fromkeys(case_of(row) for row in rows))
    scaling = [row for row in rows if server_name(row) == OURS]
    scales = len({row["workers"] for row in scaling}) > 1
    widths = (2.3 * len(cases) + 2.4, 6.0)[: 1 + scales]
    figure = Figure(figsize=(sum(widths), 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)
    _draw_cases(panels[0, 0], cases, rows)
    if scales:
        _draw_scaling(panels[0, 1], cases, scaling)
    return figure


def _draw_cases(
    axes: Axes, cases: Sequence[tuple[str, ...]], rows: Sequence[Mapping[str, str]]
) -> None:
    for place, case in enumerate(cases):
        best: dict[str, Mapping[str, str]] = {}
        for row in sorted((row for row in rows if case_of(row) == case), key=requests_per_s):
            best[server_name(row)] = row
        _draw_case(axes, place, [best[name] for name in _COLORS if name in best])
    axes.set_yscale("log")
    axes.set_ylabel("requests per second\nwith the best number of workers")
    labels = [f"{model}\n{count} rows × {clients}" for model, count, clients in cases]
    axes.set_xticks(range(len(cases)), labels)
    handles, names = axes.get_legend_handles_labels()
    # Every case brings its bars; one of each is enough.
    unique = dict(zip(names, handles, strict=True))
    axes.legend(
        unique.values(), unique.keys(), frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    axes.spines[["top", "right"]].set_visible(False)


def _draw_case(axes: Axes, place: int, rows: Sequence[Mapping[str, str]]) -> None:
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        name = server_name(row)
        left = place - 0.4 + (index + 0.5) * width
        height = requests_per_s(row)
        axes.bar(left, height, 0.9 * width, color=_COLORS[name], label=name)
        axes.annotate(f"{height:,.0f}", (left, height), ha="center", va="bottom", fontsize=6)


def _draw_scaling(
    axes: Axes, cases: Sequence[tuple[str, ...]], rows: Sequence[Mapping[str, str]]
) -> None:
    counts = sorted({int(row["workers"]) for row in rows})
    for case in cases:
        found = {int(row["workers"]): requests_per_s(row) for row in rows if case_of(row) == case}
        places = [counts.index(count) for count in found]
        model, tokens, clients = case
        label = f"{model}, {tokens} rows × {clients}"
        axes.plot(places, list(found.values()), marker="o", label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlabel(f"workers of {OURS}")
    axes.set_ylabel("requests per second")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
