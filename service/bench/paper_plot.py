"""Pictures of the paper's page, each out of one GPU's results files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# First of all, since it says in a sentence what to install where matplotlib is missing.
from service.bench.kernel_plot import conditions, draw_roof  # isort: skip

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from service.bench.kernel_results import KernelRow
from service.bench.paper_evidence import PAPER_PASSES, Evidence, intensity, ratio, size_of, speedup
from service.bench.paper_tables import efficiency_of

_EAGER, _OURS, _OTHER = "#c1432e", "#2a6f97", "#b8c4cc"
_COLOURS = ("#2a6f97", "#d98f2b", "#5b8c5a", "#c1432e", "#7a5195", "#4f5b66", "#b08ea2")
_PARTS = ("gate", "up", "silu", "mul", "down")
_PART_COLOURS = ("#7f9cb0", "#a9bccb", "#c1432e", "#e08b73", "#4f6d7f")


def draw_picture(name: str, evidence: Evidence) -> Figure:
    """The picture of that name, of those that `paper_page.pictures_of` says can be drawn."""
    draw: Mapping[str, Callable[[Evidence], Figure]] = {
        "speedup": _speedup,
        "roofline": _roofline,
        "peak": _peak,
        "wins": _wins,
        "share": _share,
        "mismatch": _mismatch,
    }
    return draw[name](evidence)


def _figure(height: float, title: str, run: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}, {conditions(run)}", fontsize=10)
    return figure


def _tidy(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _label_rows(axes: Axes, rows: Sequence[tuple[str, int]]) -> None:
    names = [f"{model.removeprefix('qwen2.5-')}\n{tokens}" for model, tokens in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=7)


def _speedup(evidence: Evidence) -> Figure:
    """Bars of ours over eager and over torch.compile's default."""
    rows = [row for row in evidence.paper_rows if speedup(row)]
    figure = _figure(3.6, "Speed-up of ours", evidence.runs[-1])
    axes = figure.add_subplot()
    bars = (
        ("over eager", _EAGER, [speedup(row) or 0 for row in rows]),
        ("over torch.compile", _OTHER, [ratio(row.compile_us, row.fused_us) or 0 for row in rows]),
    )
    for side, (label, colour, values) in zip((-0.2, 0.2), bars, strict=True):
        drawn = axes.bar([place + side for place in range(len(rows))], values, 0.4, color=colour)
        drawn.set_label(label)
        axes.bar_label(drawn, fmt="%.2f", fontsize=6, rotation=90, padding=2)
    axes.axhline(1, color="#444444", lw=0.8)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    _label_rows(axes, [row.key for row in rows])
    _tidy(axes, "eager, or compile, over ours")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def _roofline(evidence: Evidence) -> Figure:
    """Every size unfused and fused: bytes by the model, FLOP/s as measured."""
    rows = [row for row in evidence.rows if speedup(row)]
    figure = _figure(5.6, "Roofline, unfused to fused", evidence.runs[-1])
    axes = figure.add_subplot()
    ceilings = evidence.runs[-1]["ceilings"]
    draw_roof(axes, ceilings["hbm_read_bytes_per_s"], ceilings["gemm_flops_per_s"])
    unfused = [_point(row, PAPER_PASSES, row.eager_us or 0) for row in rows]
    fused = [_point(row, 0, row.fused_us or 0) for row in rows]
    for ends in zip(unfused, fused, strict=True):
        axes.plot(*zip(*ends, strict=True), color="#bbbbbb", lw=0.8, zorder=1)
    for points, label, colour in ((unfused, "unfused (eager)", _EAGER), (fused, "ours", _OURS)):
        intensities, rates = zip(*points, strict=True)
        axes.scatter(intensities, rates, s=18, color=colour, label=label)
    ridge = ceilings["gemm_flops_per_s"] / ceilings["hbm_read_bytes_per_s"]
    axes.axvline(ridge, color="#888888", lw=0.8, ls="--", label=f"ridge, {ridge:.0f} FLOP/B")
    axes.set_xlabel("FLOPs per byte, by the byte model")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


def _point(row: KernelRow, passes: int, us: float) -> tuple[float, float]:
    size = size_of(row)
    return intensity(size, passes), size.flops / us * 1e6


def _peak(evidence: Evidence) -> Figure:
    """Two panels over the paper's set: share of the data sheet's peak, and fusion efficiency."""
    rows = [row for row in evidence.paper_rows if speedup(row)]
    figure = _figure(5, "Share of peak and fusion efficiency", evidence.runs[-1])
    upper, lower = figure.subplots(2, 1, sharex=True)
    drawn = upper.bar(
        range(len(rows)), [100 * (evidence.share_of_peak(row) or 0) for row in rows], color=_OURS
    )
    upper.bar_label(drawn, fmt="%.0f", fontsize=6)
    _tidy(upper, "% of the bf16 peak")
    for variant, colour in (("eager", _EAGER), ("merged", _OTHER)):
        values = [efficiency_of(evidence, row, variant) for row in rows]
        places = [place for place, value in enumerate(values) if value is not None]
        found = [value for value in values if value is not None]
        lower.plot(places, found, "o", ms=5, color=colour, label=f"against {variant}")
    lower.axhline(1, color="#444444", lw=0.8)
    _label_rows(lower, [row.key for row in rows])
    _tidy(lower, "speed-up over predicted")
    lower.legend(frameon=False, fontsize=8)
    return figure


def _wins(evidence: Evidence) -> Figure:
    """A line a model over the tokens; below 1 Kernel-1 wins."""
    figure = _figure(4, "Kernel-1's time over Kernel-2's", evidence.runs[-1])
    axes = figure.add_subplot()
    models = list(dict.fromkeys(row.model for row in evidence.rows))
    for model, colour in zip(models, _COLOURS, strict=False):
        points = [
            (row.tokens, value)
            for row in evidence.rows
            if row.model == model and (value := ratio(row.kernel1_us, row.kernel2_us))
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", ms=4, color=colour, label=model)
    axes.axhline(1, color="#444444", lw=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("tokens", fontsize=8)
    _tidy(axes, "Kernel-1 over Kernel-2")
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return figure


def _share(evidence: Evidence) -> Figure:
    """Stacked bars of eager's kernels as parts of their sum."""
    assert evidence.paper is not None
    rows = evidence.paper.parts
    figure = _figure(3.8, "Time of the unfused MLP", evidence.paper.about)
    axes = figure.add_subplot()
    bottoms = [0.0] * len(rows)
    for part, colour in zip(_PARTS, _PART_COLOURS, strict=True):
        values = [100 * getattr(row, f"{part}_us") / row.sum_us for row in rows]
        axes.bar(range(len(rows)), values, bottom=bottoms, color=colour, label=part)
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    _label_rows(axes, [(row.model, row.tokens) for row in rows])
    _tidy(axes, "% of the parts' sum")
    axes.set_ylim(0, 115)
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="upper center")
    return figure


def _mismatch(evidence: Evidence) -> Figure:
    """A panel for each way of computing, a line a model over the scale of the weights."""
    assert evidence.paper is not None
    rows = evidence.paper.mismatch
    figure = _figure(3.4, "Elements off by more than 1 % from FP64", evidence.paper.about)
    panels = figure.subplots(1, 4, sharey=True)
    names = ("eager", "fp32", "kernel1", "kernel2")
    titles = ("eager", "FP32 rounded once", "Kernel-1", "Kernel-2")
    models = list(dict.fromkeys(row.model for row in rows))
    for axes, name, title in zip(panels, names, titles, strict=True):
        for model, colour in zip(models, _COLOURS, strict=False):
            points = [(row.std, 100 * getattr(row, name)) for row in rows if row.model == model]
            axes.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=model)
        axes.set_xscale("log")
        # A share of nothing has no logarithm: linear below a ten-thousandth.
        axes.set_yscale("symlog", linthresh=1e-2)
        axes.set_title(title, fontsize=8)
        axes.set_xlabel("deviation of weights", fontsize=8)
        _tidy(axes, "% of elements" if name == "eager" else "")
    panels[0].legend(frameon=False, fontsize=6)
    return figure
