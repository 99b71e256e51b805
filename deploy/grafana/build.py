"""The dashboard as JSON: `python -m deploy.grafana.build` writes dashboards/tilemlp.json."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.device import errors, gpu, kernels
from deploy.grafana.panels import DATASOURCE
from deploy.grafana.traffic import overview, queue, traffic

ROWS = (
    ("Overview", overview),
    ("Traffic", traffic),
    ("Queue and batching", queue),
    ("Kernels", kernels),
    ("GPU", gpu),
    ("Errors", errors),
)
TARGET = Path(__file__).parent / "dashboards" / "tilemlp.json"


def build() -> dashboard.Dashboard:
    """The dashboard, with a number of its own for each panel."""
    made = (
        parts.Dashboard("tilemlp")
        .uid("tilemlp")
        .description("SwiGLU MLPs served over HTTP: traffic, batches, kernels, GPU, errors.")
        .tags(["tilemlp"])
        .readonly()
        .timezone("browser")
        .time("now-15m", "now")
        .refresh("5s")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            parts.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(
            parts.QueryVariable("instance")
            .label("Instance")
            .datasource(DATASOURCE)
            .query("label_values(mlp_build_info, instance)")
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".+")
            .current(dashboard.VariableOption(text="All", value="$__all"))
        )
    )
    number = 0
    for title, panels in ROWS:
        number += 1
        made.with_row(parts.Row(title).id(number))
        for panel in panels():
            number += 1
            # Every kind of panel has it; the SDK declares it for each on its own.
            made.with_panel(panel.id(number))  # type: ignore[attr-defined]
    return made.build()


def as_text(made: dashboard.Dashboard) -> str:
    """The text of a dashboard's file."""
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(as_text(build()))
