"""What deploy/ holds, read once, and the programs that check it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
KUBERNETES = DEPLOY / "kubernetes"
RUNBOOK = DEPLOY / "runbook.md"
RULE_FILES = sorted(PROMETHEUS.glob("rules/*.yml"))
RULE_TESTS = sorted(PROMETHEUS.glob("tests/*.yml"))
# Where `make deploy-tools` unpacks what is not installed.
_UNPACKED = ROOT / "build" / "deploy-tools" / "usr" / "bin"


def tool(name: str, hint: str = "`make deploy-tools` fetches it") -> str:
    """Path of a program; skips the test, with the reason, where it is missing."""
    found = shutil.which(name) or shutil.which(name, path=str(_UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not installed; {hint}")
    return found


def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules(kind: str) -> list[dict[str, Any]]:
    """Every rule that has the key `record` or `alert`."""
    groups = [group for path in RULE_FILES for group in load_yaml(path)["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def dashboard() -> dict[str, Any]:
    return json.loads((GRAFANA / "dashboards" / "tilemlp.json").read_text())


@dataclass(frozen=True)
class PanelQuery:
    """One query of the dashboard."""

    panel: str
    expr: str
    legend: str

    def __str__(self) -> str:
        return f"{self.panel}-{self.legend}" if self.legend else self.panel


def panel_queries() -> list[PanelQuery]:
    return [
        PanelQuery(panel["title"], target["expr"], target.get("legendFormat", ""))
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def readme_queries() -> list[str]:
    """The lines of the README's PromQL."""
    blocks = re.findall(r"```promql\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]
