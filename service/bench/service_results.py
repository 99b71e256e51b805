"""`<gpu>-service.csv` and its JSON: what the service adds to an echo, and other servers beside it.

Two commands measure the two halves; each keeps what the other wrote.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "server",
    "workers",
    "transport",
    "model",
    "rows",
    "clients",
    "requests_per_s",
    "gbytes_per_s",
    "p50_us",
    "p99_us",
    "cpu_ms_per_request",
    "gpu_busy",
    "errors",
)
# The model of the rows that show what the service adds; the comparison's have other names.
STUB = "stub"
_PEERS = "peers"
_SUFFIX = "-service.csv"


def _what(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What a row is the measurement of."""
    return tuple(str(row[name]) for name in COLUMNS[: COLUMNS.index("clients") + 1])


class ServiceResults:
    """The two files of one machine.

    Args:
        folder: Where they are, or are to be.
        gpu: Slug of the GPU, or `cpu`.
    """

    def __init__(self, folder: Path, gpu: str) -> None:
        self.path = folder / f"{gpu}{_SUFFIX}"
        self._about_path = self.path.with_suffix(".json")

    @classmethod
    def of(cls, path: Path) -> ServiceResults:
        """Those whose CSV has this name."""
        return cls(path.parent, path.name.removesuffix(_SUFFIX))

    def added(self) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """How it was measured what the service adds, and the rows; both empty where it was not."""
        about = self._about()
        about.pop(_PEERS, None)
        return about, [row for row in self._rows() if row["model"] == STUB]

    def peers(self) -> tuple[dict[str, Any], list[dict[str, str]]]:
        """How the servers were compared, and the rows; both empty where they were not."""
        about: dict[str, Any] = self._about().get(_PEERS, {})
        return about, [row for row in self._rows() if row["model"] != STUB]

    def replace_added(self, about: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
        """Write what the service adds anew."""
        peers, peer_rows = self.peers()
        self._write({**about, **({_PEERS: peers} if peers else {})}, [*rows, *peer_rows])

    def replace_peers(self, about: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
        """Write the comparison anew."""
        added, added_rows = self.added()
        self._write({**added, _PEERS: about}, [*added_rows, *rows])

    def add_peers(
        self,
        before: tuple[dict[str, Any], list[dict[str, str]]],
        about: dict[str, Any],
        rows: Sequence[dict[str, Any]],
    ) -> None:
        """Write a comparison beside one that was there, of which what was measured again goes.

        Args:
            before: From `peers`.
            about: How the rows were measured.
            rows: What was.
        """
        about_before, rows_before = before
        again = {_what(row) for row in rows}
        kept: list[dict[str, Any]] = [row for row in rows_before if _what(row) not in again]
        if kept:
            latest = {name: value for name, value in about_before.items() if name != "earlier"}
            about = {**about, "earlier": [latest, *about_before.get("earlier", [])]}
        self.replace_peers(about, [*kept, *rows])

    def _about(self) -> dict[str, Any]:
        if not self._about_path.exists():
            return {}
        about: dict[str, Any] = json.loads(self._about_path.read_text())
        return about

    def _rows(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, about: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        self._about_path.write_text(json.dumps(about, indent=1) + "\n")
