"""The pictures of a kernels results file."""

from __future__ import annotations

import pytest

from service.bench.kernel_plot import draw_roofline, draw_speedups, plot_directory
from service.bench.kernel_results import KernelRow, read_rows, write_rows
from service.errors import ConfigError
from tests.bench.results import RUN, write_results


def test_two_pictures_beside_the_file_and_the_same_ones_again(tmp_path):
    write_results(tmp_path)
    pictures = plot_directory(tmp_path)
    assert [picture.name for picture in pictures] == [
        "h200-kernels-speedup.png",
        "h200-kernels-roofline.png",
    ]
    first = [picture.read_bytes() for picture in pictures]
    assert all(data.startswith(b"\x89PNG") for data in first)
    plot_directory(tmp_path)
    assert [picture.read_bytes() for picture in pictures] == first


def test_a_bar_is_eagers_time_over_the_variants(tmp_path):
    figure = draw_speedups(read_rows(write_results(tmp_path)), RUN)
    small, large = figure.axes
    assert (small.get_ylabel(), large.get_ylabel()) == ("qwen2.5-0.5b", "qwen2.5-72b")
    heights = [[bar.get_height() for bar in group] for group in small.containers]
    # compile, merged, QuACK (not run at 16 tokens), fused
    expected = [1.5 / 1.4, 1.5 / 1.25, 0.0, 1.5 / 0.96]
    assert [group[0] for group in heights] == pytest.approx(expected, rel=1e-2)
    assert heights[2][1] == pytest.approx(1.5 / 0.97, rel=1e-2)
    assert "NVIDIA H200, 700 W" in figure.get_suptitle()


def test_the_roofline_is_the_runs_own_and_points_lie_under_it(tmp_path):
    rows = read_rows(write_results(tmp_path))
    (axes,) = draw_roofline(rows, RUN).axes
    roof, *pairs = axes.get_lines()
    assert len(pairs) == len(rows)
    assert max(roof.get_ydata()) == 680e12
    eager, fused = axes.collections
    for points, share in ((eager, 0.8 / 1.5), (fused, 0.8 / 0.96)):
        for intensity, rate in points.get_offsets():
            assert rate == pytest.approx(min(680e12, intensity * 4.39e12) * share, rel=1e-2)


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold a file \*-kernels.csv"):
        plot_directory(tmp_path)
    write_rows(tmp_path / "h200-kernels.csv", [KernelRow("qwen2.5-3b", 1, 2048, 11008)])
    with pytest.raises(ConfigError, match="eager and fused times, has none"):
        plot_directory(tmp_path)
