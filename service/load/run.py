"""A whole load test: prepare, measure every load, report."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from datetime import datetime, timezone
from importlib import metadata

from rich.console import Console

from service import __version__
from service.load.options import LoadOptions
from service.load.plan import Load, make_loads, make_plans
from service.load.prepare import Prepared, prepare
from service.load.processes import run_plans
from service.load.progress import LoadProgress
from service.load.report import LoadReport, LoadResult, make_result
from service.load.runner import run_async


def run_load(options: LoadOptions) -> LoadReport:
    """Run a load test; live progress goes to stderr if that is a terminal.

    Raises:
        StartError: the service cannot be reached or asked, or its answers cannot be checked.
    """
    date_utc = datetime.now(timezone.utc).isoformat(timespec="seconds")
    prepared = run_async(prepare(options))
    console = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        progress = None
        if console.is_terminal and not options.quiet:
            progress = stack.enter_context(LoadProgress(console, options))
        results = [_measure(options, load, prepared, progress) for load in make_loads(options)]
    return LoadReport(
        options=options,
        date_utc=date_utc,
        model=prepared.model_name,
        hidden_size=prepared.hidden_size,
        width=prepared.width,
        server=prepared.server,
        model_metadata=prepared.model,
        versions=_versions(),
        host={"cpu_count": os.cpu_count(), "platform": platform.platform()},
        results=tuple(results),
    )


def _measure(
    options: LoadOptions, load: Load, prepared: Prepared, progress: LoadProgress | None
) -> LoadResult:
    plans = make_plans(options, load, prepared.payloads, prepared.expected)
    if progress is not None:
        progress.begin(load)
    tally = run_plans(plans, None if progress is None else progress.show)
    return make_result(load, tally, options.duration_s)


def _versions() -> dict[str, str]:
    own = {"tilemlp": __version__, "python": platform.python_version()}
    return {**own, **{name: _version(name) for name in ("httptools", "numpy", "uvloop")}}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # uvloop on Windows
        return "none"
