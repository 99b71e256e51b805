"""The time budget of a request as a picture beside its results file."""

from __future__ import annotations

from pathlib import Path

from service.bench.budget import STAGES, BudgetRow, read_rows
from service.errors import ConfigError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ConfigError(f"plot: needs matplotlib (pip install 'tilemlp[plot]'): {error}") from None

# The host's work in blues and greys, the GPU's in warm colours.
_COLOURS = {
    "receive_us": "#9dc3d6",
    "decode_us": "#6fa3bd",
    "queue_us": "#c9ced2",
    "h2d_us": "#f0c987",
    "gate_up_us": "#d98f2b",
    "down_us": "#b5651d",
    "d2h_us": "#e8a9a0",
    "encode_us": "#3f7d9c",
    "other_us": "#7b858c",
}


def plot_budget(results: Path) -> list[Path]:
    """Draw every budget file of a directory; returns the pictures written.

    Raises:
        ConfigError: there is none.
    """
    paths = sorted(results.glob("*-budget.csv"))
    if not paths:
        raise ConfigError(f"results: must hold a file *-budget.csv, {results} holds none")
    for path in paths:
        # No date inside: the same results make the same file.
        figure = draw_budget(read_rows(path))
        figure.savefig(path.with_suffix(".png"), format="png", metadata={"Software": None})
    return [path.with_suffix(".png") for path in paths]


def draw_budget(rows: list[BudgetRow]) -> Figure:
    """One panel a load, one bar a model, one part a stage."""
    loads = list(dict.fromkeys((row.connections, row.rows) for row in rows))
    figure = Figure(figsize=(10, 1.1 + 1.3 * len(loads)), layout="constrained", dpi=120)
    panels = figure.subplots(len(loads), 1, squeeze=False)[:, 0]
    for panel, load in zip(panels, loads, strict=True):
        _draw_load(panel, load, [row for row in rows if (row.connections, row.rows) == load])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(STAGES), fontsize=8)
    panels[-1].set_xlabel("microseconds of a request inside the service, mean")
    return figure


def _draw_load(panel: Axes, load: tuple[int, int], rows: list[BudgetRow]) -> None:
    names = [row.model for row in rows]
    left = [0.0] * len(rows)
    for stage in STAGES:
        widths = [max(0.0, getattr(row, stage)) for row in rows]
        label = stage.removesuffix("_us").replace("_", "/")
        panel.barh(names, widths, left=left, label=label, color=_COLOURS[stage], height=0.62)
        left = [sum(pair) for pair in zip(left, widths, strict=True)]
    panel.set_title(f"{load[0]} clients x {load[1]} rows", loc="left", fontsize=9)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
