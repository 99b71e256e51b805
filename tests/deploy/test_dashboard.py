"""The dashboard's JSON: what its code builds, and laid out so that all of it can be seen."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest

from tests.deploy.files import GRAFANA, PROMETHEUS, ROOT, dashboard, load_yaml

PANELS: list[dict[str, Any]] = dashboard()["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]


def code() -> Any:
    """The module that builds it."""
    if sys.version_info < (3, 11):
        pytest.skip("Grafana's SDK needs Python 3.11")
    return importlib.import_module("deploy.grafana.build")


def test_it_is_what_the_code_builds():
    build = code()
    assert build.TARGET.read_text() == build.as_text(build.build()), "run `make dashboard`"


def test_the_sdk_reads_back_what_it_wrote():
    build = code()
    read = type(build.build()).from_json(dashboard())
    assert json.loads(build.as_text(read)) == dashboard()


def test_it_has_a_row_for_each_subject():
    titles = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert titles == ["Overview", "Traffic", "Queue and batching", "Kernels", "GPU", "Errors"]


def test_no_two_panels_lie_on_each_other_and_none_sticks_out():
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height, "a hole between panels"


def test_panels_have_numbers_titles_and_explanations_of_their_own():
    for key in ("id", "title"):
        values = [panel[key] for panel in SHOWN]
        assert len(set(values)) == len(values)
    for panel in SHOWN:
        assert panel["description"].endswith("."), panel["title"]


def test_every_panel_asks_the_chosen_data_source_for_the_chosen_instances():
    for panel in SHOWN:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            everywhere = target["expr"].startswith(("objective:", "count(ALERTS"))
            assert everywhere or 'instance=~"$instance"' in target["expr"], target["expr"]
            assert "datasource" not in target
    variables = {entry["name"]: entry for entry in dashboard()["templating"]["list"]}
    assert set(variables) == {"datasource", "instance"}
    assert variables["instance"]["datasource"]["uid"] == "${datasource}"


def test_every_panel_has_a_unit():
    for panel in SHOWN:
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"]
        elif panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_grafana_is_told_where_prometheus_is_and_how_often_it_scrapes():
    (source,) = load_yaml(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["isDefault"] is True
    interval = load_yaml(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval


def test_grafana_is_told_where_the_dashboard_is():
    (provider,) = load_yaml(GRAFANA / "provisioning/dashboards/tilemlp.yml")["providers"]
    assert provider["type"] == "file"
    mounts = {"./deploy/grafana/dashboards": "/var/lib/grafana/dashboards"}
    compose = ROOT / "docker-compose.yml"
    if compose.is_file():
        volumes = load_yaml(compose)["services"]["grafana"]["volumes"]
        mounts = dict(volume.split(":")[:2] for volume in volumes)
    assert provider["options"]["path"] == mounts["./deploy/grafana/dashboards"]
