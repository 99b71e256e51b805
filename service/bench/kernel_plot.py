"""Speed-up bars and a roofline of a kernels results file, as PNGs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from service.bench.kernel_problem import Size
from service.bench.kernel_results import KernelRow, read_about, read_rows
from service.errors import ConfigError

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ImportError as error:
    raise ConfigError(f"plot: needs matplotlib (pip install 'tilemlp[plot]'): {error}") from None

_BARS = (
    ("compile_us", "torch.compile", "#b8c4cc"),
    ("merged_us", "merged GEMM + silu·mul", "#7f9cb0"),
    ("quack_us", "QuACK", "#d98f2b"),
    ("fused_us", "fused (ours)", "#2a6f97"),
)
_DOTS = (("eager_us", "eager", "#c1432e", "s"), ("fused_us", "fused (ours)", "#2a6f97", "o"))


def plot_directory(results: Path) -> list[Path]:
    """Draw every kernels results file of a directory; returns the pictures written.

    Raises:
        ConfigError: there is none, or nothing to draw in one of them.
    """
    paths = sorted(results.glob("*-kernels.csv"))
    if not paths:
        raise ConfigError(f"results: must hold a file *-kernels.csv, {results} holds none")
    return [picture for path in paths for picture in plot_results(path)]


def plot_results(path: Path) -> list[Path]:
    """Draw a results file; returns the pictures written.

    Raises:
        ConfigError: there is no such file, or nothing in it to draw.
    """
    rows = [row for row in read_rows(path) if row.eager_us and row.fused_us]
    if not rows:
        raise ConfigError(f"plot: {path} must have a row with eager and fused times, has none")
    run = read_about(path.with_suffix(".json"))[-1]
    pictures = {
        path.with_name(f"{path.stem}-speedup.png"): draw_speedups(rows, run),
        path.with_name(f"{path.stem}-roofline.png"): draw_roofline(rows, run),
    }
    for picture, figure in pictures.items():
        # No date inside: the same results make the same file.
        figure.savefig(picture, format="png", metadata={"Software": None})
    return list(pictures)


def draw_speedups(rows: Sequence[KernelRow], run: dict[str, object]) -> Figure:
    """Bars of eager's time over each variant's, one panel a model, one group an M."""
    models = list(dict.fromkeys(row.model for row in rows))
    height = 1.1 + 1.9 * len(models)
    figure = Figure(figsize=(9, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(models), 1, squeeze=False, sharex=False)
    figure.suptitle(f"Speed-up over eager, {conditions(run)}", fontsize=10)
    for panel, model in zip(panels[:, 0], models, strict=True):
        _draw_model(panel, [row for row in rows if row.model == model])
    panels[-1, 0].set_xlabel("tokens", fontsize=8)
    panels[0, 0].legend(frameon=False, ncols=len(_BARS), fontsize=8, loc="upper right")
    return figure


def _draw_model(axes: Axes, rows: Sequence[KernelRow]) -> None:
    width = 0.8 / len(_BARS)
    for index, (name, label, colour) in enumerate(_BARS):
        places = [place + (index - (len(_BARS) - 1) / 2) * width for place in range(len(rows))]
        ratios = [_speedup(row, name) for row in rows]
        bars = axes.bar(places, ratios, width, label=label, color=colour)
        if name == "fused_us":
            axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    axes.axhline(1, color="#444444", lw=0.8)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.2)
    axes.set_xticks(range(len(rows)), [f"{row.tokens:,}" for row in rows], fontsize=8)
    axes.set_ylabel(rows[0].model, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _speedup(row: KernelRow, name: str) -> float:
    """Eager's time over a variant's; 0, which draws no bar, where it was not run."""
    us: float | None = getattr(row, name)
    return row.eager_us / us if row.eager_us and us else 0.0


def draw_roofline(rows: Sequence[KernelRow], run: dict[str, object]) -> Figure:
    """FLOP/s over FLOPs per byte that have to be moved, under what the card reached in the run."""
    ceilings = run["ceilings"]
    assert isinstance(ceilings, dict)
    read, gemm = ceilings["hbm_read_bytes_per_s"], ceilings["gemm_flops_per_s"]
    figure = Figure(figsize=(9, 5.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"Roofline of gate and up, {conditions(run)}", fontsize=10)
    draw_roof(axes, read, gemm)
    for row in rows:
        ends = (_point(row, row.eager_us or 0), _point(row, row.fused_us or 0))
        axes.plot(*zip(*ends, strict=True), color="#bbbbbb", lw=0.8, zorder=1)
    for name, label, colour, marker in _DOTS:
        intensities, rates = zip(*(_point(row, getattr(row, name)) for row in rows), strict=True)
        axes.scatter(intensities, rates, s=18, color=colour, marker=marker, label=label)
    axes.set_xlabel("FLOPs per byte, each operand moved once")
    axes.legend(frameon=False, loc="lower right")
    return figure


def draw_roof(axes: Axes, read: float, gemm: float) -> None:
    """Logarithmic axes with what memory and tensor cores allow, in bytes/s and FLOP/s."""
    low, ridge, high = 0.5, gemm / read, 8192
    axes.plot([low, ridge, high], [low * read, gemm, gemm], color="#444444", lw=1.4)
    axes.annotate(f"{read / 1e12:.2f} TB/s read", (1.8, 2 * read), fontsize=8, ha="right")
    axes.annotate(
        f"{gemm / 1e12:.0f} TFLOP/s, cuBLAS 8192³", (ridge * 1.1, gemm * 1.05), fontsize=8
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=gemm * 1.6)
    axes.set_ylabel("TFLOP/s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e12:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="#dddddd", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _point(row: KernelRow, us: float) -> tuple[float, float]:
    size = Size(row.model, row.tokens)
    return size.flops / size.bytes, size.flops / us * 1e6


def conditions(run: dict[str, object]) -> str:
    """The card, its power limit, the data type and the day, for a title."""
    limit = run.get("power_limit_watts")
    watts = f", {limit:.0f} W" if isinstance(limit, float) else ""
    return f"{run['gpu']}{watts}, bf16, {str(run['date'])[:10]}"
