"""Prometheus' configuration and rules: well formed, tested, and each alert with a way out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from service.errors import ServiceError
from tests.deploy.files import (
    KUBERNETES,
    PROMETHEUS,
    RULE_FILES,
    RULE_TESTS,
    RUNBOOK,
    load_yaml,
    rules,
    tool,
)

ALERTS = {rule["alert"]: rule for rule in rules("alert")}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_promtool_accepts_configuration_and_rules():
    done = promtool("check", "config", "--lint=all", "--lint-fatal", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    # The configuration finds the rule files by itself.
    for path in RULE_FILES:
        assert f"Checking {path}" in done.stdout


def test_promtool_refuses_a_rule_that_is_none(tmp_path: Path):
    broken = tmp_path / "broken.yml"
    broken.write_text(RULE_FILES[0].read_text().replace("sum", "sun").replace("== 0", "=== 0"))
    assert promtool("check", "rules", broken).returncode != 0


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_the_rules_tests_pass(path: Path):
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _expected_alerts() -> dict[str, list[int]]:
    """For each alert, how many instances each of its tests expects."""
    counts: dict[str, list[int]] = {name: [] for name in ALERTS}
    for path in RULE_TESTS:
        for test in load_yaml(path)["tests"]:
            for case in test.get("alert_rule_test", ()):
                counts[case["alertname"]].append(len(case["exp_alerts"]))
    return counts


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_seen_to_fire_and_to_stay_quiet(name: str):
    counts = _expected_alerts()[name]
    assert 0 in counts
    assert any(counts)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_to_do(name: str):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert all(text.endswith(".") for key, text in rule["annotations"].items() if "url" not in key)
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (RUNBOOK.parents[1] / path) == RUNBOOK
    assert anchor == name.lower()
    assert rule["annotations"]["runbook"]


def test_the_runbook_has_a_section_for_each_alert_and_for_nothing_else():
    sections = re.findall(r"^## (.*)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)


def test_the_runbook_refers_to_sections_that_exist():
    named = set(re.findall(r"\bTilemlp\w+", RUNBOOK.read_text()))
    assert named == set(ALERTS)


def test_failing_means_every_5xx_of_the_service():
    classes, failing = [ServiceError], set()
    while classes:
        current = classes.pop()
        classes += current.__subclasses__()
        # A refusal to start is no request.
        if current.status >= 500 and current.code != "start":
            failing.add(current.code)
    (rule,) = [
        r for r in rules("record") if r["record"] == "instance:mlp_request_errors:ratio_rate5m"
    ]
    (matched,) = re.findall(r'outcome=~"([^"]*)"', rule["expr"])
    assert set(matched.split("|")) == failing


@pytest.mark.parametrize(
    ("job", "ours"),
    [("tilemlp", True), ("models/tilemlp", True), ("not-tilemlp", False), ("tilemlp-load", False)],
)
def test_down_is_about_our_jobs(job: str, ours: bool):
    (pattern,) = re.findall(r'job=~"([^"]*)"', ALERTS["TilemlpDown"]["expr"])
    assert bool(re.fullmatch(pattern, job)) is ours


def test_down_knows_the_jobs_that_we_configure():
    (pattern,) = re.findall(r'job=~"([^"]*)"', ALERTS["TilemlpDown"]["expr"])
    jobs = [job["job_name"] for job in load_yaml(PROMETHEUS / "prometheus.yml")["scrape_configs"]]
    assert [job for job in jobs if re.fullmatch(pattern, job)] == ["tilemlp"]
    namespace = load_yaml(KUBERNETES / "kustomization.yaml")["namespace"]
    monitor = load_yaml(KUBERNETES / "podmonitor.yaml")["metadata"]["name"]
    assert re.fullmatch(pattern, f"{namespace}/{monitor}")
