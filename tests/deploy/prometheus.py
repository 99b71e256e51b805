"""A real Prometheus with the checked-in configuration and rules, faster and on other targets."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.deploy.files import PROMETHEUS, RULE_FILES, load_yaml, tool
from tests.servers import get, wait_until

Series = dict[str, str]


class Prometheus:
    """The process; scrapes and evaluates every second.

    Args:
        folder: For its configuration, data and log.
        targets: host:port of each, in place of what the job tilemlp scrapes.
    """

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        program = tool("prometheus")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{address}"
        self._targets = targets
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_configuration(targets, address)))
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Prometheus:
        wait_until(self._scraped_all, 30)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)

    def _scraped_all(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            up = self.instant('up{job="tilemlp"}')
        except OSError:
            return False
        return sum(value for _, value in up) == len(self._targets)

    def instant(self, expr: str) -> list[tuple[Series, float]]:
        """Every series of an expression now."""
        found = self._get("query", query=expr)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def over(self, expr: str, start: float, end: float) -> list[tuple[Series, list[float]]]:
        """Every series of an expression from start to end (Unix seconds), second by second."""
        found = self._get("query_range", query=expr, start=start, end=end, step=1)["result"]
        return [(s["metric"], [float(value) for _, value in s["values"]]) for s in found]

    def rules(self) -> list[dict[str, Any]]:
        """What it says of every rule."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **query: object) -> Any:
        status, body = get(self.url, f"/api/v1/{path}?{urlencode(query)}")
        # While it starts it answers 503 with plain text.
        if status == 503:
            raise ConnectionError(body.decode())
        answer = json.loads(body)
        assert answer["status"] == "success", f"{query}: {answer}"
        return answer["data"]


def _configuration(targets: Sequence[str], own_address: str) -> dict[str, Any]:
    config = load_yaml(PROMETHEUS / "prometheus.yml")
    every_second = dict.fromkeys(config["global"], "1s")
    replaced = {"tilemlp": list(targets), "prometheus": [own_address]}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": replaced[job["job_name"]]}]
    return config | {"global": every_second, "rule_files": [str(path) for path in RULE_FILES]}
