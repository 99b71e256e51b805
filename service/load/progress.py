"""Live progress of a load on a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.render import format_time
from service.load.tally import Tally


class LoadProgress:
    """A line per load: elapsed time, rate, p50, p99 and errors so far. A context manager."""

    def __init__(self, console: Console, options: LoadOptions) -> None:
        self._options = options
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.1f}/{task.total:g} s"),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,  # the report says it all again
            auto_refresh=False,  # no thread; there is something new twice a second
        )
        self._task = self._progress.add_task("", total=None, visible=False, figures="")
        self._began_s = 0.0

    def __enter__(self) -> LoadProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, load: Load) -> None:
        """Start the line of a load."""
        name = f"{load.connections} connections"
        if load.rate_per_s is not None:
            name = f"{load.rate_per_s:g} requests/s"
        total_s = self._options.warm_up_s + self._options.duration_s
        self._task = self._progress.add_task(name, total=total_s, figures="connecting")
        self._began_s = 0.0
        self._progress.refresh()

    def show(self, tally: Tally) -> None:
        """Show what was counted so far."""
        now = time.monotonic()
        self._began_s = self._began_s or now
        elapsed_s = now - self._began_s
        self._progress.update(
            self._task,
            completed=min(elapsed_s, self._options.warm_up_s + self._options.duration_s),
            figures=describe(tally, elapsed_s - self._options.warm_up_s),
            refresh=True,
        )


def describe(tally: Tally, measured_s: float) -> str:
    """Figures of a load that is under way; measured_s is negative during the warm-up."""
    errors = f"{tally.errors:,} errors"
    latency = tally.latency()
    p50, p99 = latency.quantile(0.5), latency.quantile(0.99)
    if measured_s <= 0 or p50 is None or p99 is None:
        return f"warming up  {errors}"
    return (
        f"{tally.requests / measured_s:,.0f} req/s  p50 {format_time(p50 / 1e9)}  "
        f"p99 {format_time(p99 / 1e9)}  {errors}"
    )
