"""Panels of the kinds that the dashboard uses, all alike: one function per kind."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.builders import heatmap as heatmaps
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard, heatmap
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.promql import Query

# The variable, so that the dashboard works with a data source of any name.
DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panels = list[Builder[dashboard.Panel]]


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    span: int = 12,
    stacked: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Builder[dashboard.Panel]:
    """Values over time.

    Args:
        title: Of the panel.
        description: What a reader has to know to read it.
        unit: Grafana's identifier, such as `s` or `percentunit`.
        queries: Each with the legend of its series.
        span: Width, of 24.
        stacked: The series add up to something.
        bounds: Ends of the axis; by default from 0 to what there is.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0.0 if bounds is None else bounds[0])
        .span(span)
        .height(8)
        .fill_opacity(30 if stacked else 8)
        .line_width(1)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            options.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            options.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if bounds is not None:
        panel.max(bounds[1])
    if stacked:
        panel.stacking(options.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for target in _targets(queries):
        panel.with_target(target)
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
) -> Builder[dashboard.Panel]:
    """The latest value of one series, large.

    Args:
        title: Of the panel.
        description: What a reader has to know to read it.
        unit: Grafana's identifier.
        expr: PromQL of one series.
        steps: From which value on which colour; None is the lowest.
    """
    thresholds = parts.ThresholdsConfig().steps(
        [dashboard.Threshold(value=value, color=color) for value, color in steps]
    )
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(3)
        .height(4)
        .no_value("–")
        .thresholds(thresholds)
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(prometheus.Dataquery().expr(expr).ref_id("A").instant())
    )


def distribution(title: str, description: str, unit: str, expr: str) -> Builder[dashboard.Panel]:
    """A histogram's buckets over time, as a heat map.

    Args:
        title: Of the panel.
        description: What a reader has to know to read it.
        unit: Of the bucket bounds.
        expr: PromQL of cumulative buckets by `le`.
    """
    return (
        heatmaps.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(12)
        .height(8)
        .calculate(False)
        .cell_gap(1)
        .y_axis(heatmaps.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
        .rows_frame(heatmaps.RowsHeatmapOptions().layout(common.HeatmapCellLayout.LE))
        .color(
            heatmaps.HeatmapColorOptions()
            .mode(heatmap.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .fill("dark-orange")
            .exponent(0.5)
            .steps(64)
        )
        .filter_values(heatmaps.FilterValueRange().le(1e-9))
        .show_legend()
        .mode(common.TooltipDisplayMode.SINGLE)
        .with_target(
            prometheus.Dataquery()
            .expr(expr)
            .legend_format("{{le}}")
            .format(PromQueryFormat.HEATMAP)
            .ref_id("A")
            .range()
        )
    )


def labels(title: str, description: str, expr: str) -> Builder[dashboard.Panel]:
    """The labels of series as the rows of a table, without value and time."""
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(24)
        .height(5)
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize", options={"excludeByName": hidden, "renameByName": {}}
            )
        )
        .with_target(
            prometheus.Dataquery().expr(expr).format(PromQueryFormat.TABLE).ref_id("A").instant()
        )
    )


def _targets(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).ref_id("ABCDEFGH"[index]).range()
        for index, (expr, legend) in enumerate(queries)
    ]
