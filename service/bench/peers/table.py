"""The comparison as a table for the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.bench.markdown import markdown_table
from service.bench.service_results import ServiceResults

OURS = "tilemlp"
# The floor that any Python server stands on, and no peer.
FLOOR = "echo"
_CASE = ("model", "rows", "clients")
_HEADER = (*_CASE, "server", "workers", "requests/s", "GB/s", "p50 ms", "p99 ms")


def peer_tables(folder: Path) -> str:
    """The comparisons on all machines whose results are there."""
    slugs = sorted(path.name.removesuffix("-service.csv") for path in folder.glob("*-service.csv"))
    tables = [_peer_table(ServiceResults(folder, slug)) for slug in slugs]
    return "\n\n".join(table for table in tables if table) or "Not measured yet."


def _peer_table(results: ServiceResults) -> str:
    """Picture, table and conditions; empty where nothing was compared."""
    about, rows = results.peers()
    if not rows:
        return ""
    table = markdown_table(
        (*_HEADER, "CPU ms/request", "GPU busy", "errors", "to the best other"),
        [_cells(row, best_other(rows, row)) for row in by_case(rows)],
    )
    versions = ", ".join(f"{name} {found}" for name, found in about["versions"].items())
    sentences = [
        f"{about.get('gpu', 'No GPU')}, {about['machine']}, Python {about['python']}, {versions}, "
        f"commit {about['commit']}, {about['date'][:10]}, `{about['command']}`; medians of "
        f"{about['rounds']} rounds of "
        f"{about['duration_s']:g} s (longer where a client got few answers in it), one server at a "
        "time, answers checked; GB/s both ways; "
        "CPU of all processes of the server; workers are processes that serve HTTP, beside the "
        "engine's with tilemlp and LitServe, each with an engine with BentoML and Ray Serve; a "
        f"client process was busy {about['clients_busy']:.0%} of the time at most "
        f"({about['clients_busy_with']}); load average {about['load_average']:.1f} before the run.",
        *(f"Left out: {sentence}." for sentence in about["left_out"]),
        *(
            f"Rows that were not measured then are of commit {run['commit']}, {run['date'][:10]}, "
            f"`{run['command']}`, medians of {run['rounds']} rounds of {run['duration_s']:g} s."
            for run in about.get("earlier", [])
        ),
    ]
    picture = (
        f"![Requests per second of the servers](service/bench/results/{results.path.stem}.png)"
    )
    return "\n\n".join([picture, table, " ".join(sentences)])


def by_case(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The rows with those of one case together, therein those of one server, as first measured."""
    cases = list(dict.fromkeys(case_of(row) for row in rows))
    names = list(dict.fromkeys(server_name(row) for row in rows))
    return sorted(rows, key=lambda row: (cases.index(case_of(row)), names.index(server_name(row))))


def case_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """Model, rows and clients."""
    return tuple(row[name] for name in _CASE)


def best_other(
    rows: Sequence[Mapping[str, str]], row: Mapping[str, str]
) -> Mapping[str, str] | None:
    """The fastest other server in the same case; None for servers that are not ours.

    None as well where no other gave a right answer.
    """
    if row["server"] != OURS:
        return None
    case = case_of(row)
    others = [
        other
        for other in rows
        if other["server"] not in (OURS, FLOOR)
        and case_of(other) == case
        and requests_per_s(other) > 0
    ]
    return max(others, key=requests_per_s, default=None)


def requests_per_s(row: Mapping[str, str]) -> float:
    """As a number."""
    return float(row["requests_per_s"])


def server_name(row: Mapping[str, str]) -> str:
    """The server, with its transport where that is not the usual one."""
    return row["server"] if row["transport"] == "http" else f"{row['server']} ({row['transport']})"


def _cells(row: Mapping[str, str], best: Mapping[str, str] | None) -> tuple[str, ...]:
    ratio = ""
    if best is not None:
        times = requests_per_s(row) / requests_per_s(best)
        ratio = f"{times:.1f}× {best['server']}"
    return (
        *case_of(row),
        server_name(row),
        row["workers"],
        row["requests_per_s"],
        row["gbytes_per_s"],
        *(f"{float(row[name]) / 1e3:.2f}" for name in ("p50_us", "p99_us")),
        f"{float(row['cpu_ms_per_request']):.2f}",
        f"{float(row['gpu_busy']):.0%}" if row["gpu_busy"] else "",
        row["errors"],
        ratio,
    )


def describe(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows for a terminal."""
    return [
        f"{row['model']:14} {row['rows']:5} rows {row['clients']:3} clients  {server_name(row):14}"
        f"{row['workers']:2} workers {row['requests_per_s']:>9} requests/s "
        f"{row['gbytes_per_s']:>8} GB/s "
        f"{row['cpu_ms_per_request']:>9} CPU ms/request {row['errors']:>4} errors"
        for row in rows
    ]
