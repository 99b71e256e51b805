"""One load in several processes, started together and counted as one."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from service.errors import StartError
from service.load.driver import REPORT_INTERVAL_S, OnReport
from service.load.plan import Plan
from service.load.runner import LET_GO_TIMEOUT_S, run_plan
from service.load.stop_signals import StopSignals
from service.load.tally import Tally

# Longer than they take to let go of what they hold.
_STOP_TIMEOUT_S = LET_GO_TIMEOUT_S + 2.0

# From a process: that it is ready, what it counted so far, what it counted in all, or why it
# cannot start.
_Message = tuple[str, Tally | str | None]


def run_plans(plans: Sequence[Plan], on_report: OnReport | None = None) -> Tally:
    """Run every plan in a process of its own and add up what they counted.

    A single plan that nobody watches runs in this process. One that is watched does not: drawing
    takes milliseconds, which would show as latency.

    Raises:
        StartError: a process cannot make its connections, or it ended early.
    """
    if len(plans) == 1 and on_report is None:
        return run_plan(plans[0])
    with _processes(len(plans)) as pipes:
        # Only now that all are starting: plans hold megabytes, which wait for a process to be up.
        for number, (pipe, plan) in enumerate(zip(pipes, plans, strict=True)):
            _send(pipe, number, plan)
        for number, pipe in enumerate(pipes):
            _receive(pipe, number)  # that it is ready
        for number, pipe in enumerate(pipes):
            _send(pipe, number, None)
        return _collect(pipes, on_report)


@contextmanager
def _processes(count: int) -> Iterator[list[Connection]]:
    # Not forked: threads of the parent (a progress bar, numpy's) do not survive that well.
    context = multiprocessing.get_context("spawn")
    running: list[SpawnProcess] = []
    pipes: list[Connection] = []
    with StopSignals() as signals:
        try:
            with signals.calling(_interrupt):
                for _ in range(count):
                    mine, theirs = context.Pipe()
                    pipes.append(mine)
                    process = context.Process(target=_work, args=(theirs,), daemon=True)
                    process.start()
                    running.append(process)
                    theirs.close()  # or the end of the process would not end the pipe
                yield pipes
                _join(running)
        finally:
            for pipe in pipes:
                pipe.close()
            for process in running:
                process.terminate()
            _join(running)
            for process in running:
                process.kill()
                process.join(_STOP_TIMEOUT_S)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _join(processes: Sequence[SpawnProcess]) -> None:
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))


def _collect(pipes: Sequence[Connection], on_report: OnReport | None) -> Tally:
    latest = [Tally() for _ in pipes]
    unfinished = {pipe: number for number, pipe in enumerate(pipes)}
    next_report_s = time.monotonic()
    while unfinished:
        for pipe in wait(list(unfinished)):
            assert isinstance(pipe, Connection)
            number = unfinished[pipe]
            kind, tally = _receive(pipe, number)
            assert isinstance(tally, Tally)
            latest[number] = tally
            if kind == "done":
                del unfinished[pipe]
        if on_report is not None and time.monotonic() >= next_report_s:
            next_report_s = time.monotonic() + REPORT_INTERVAL_S
            on_report(_sum(latest))
    return _sum(latest)


def _sum(tallies: Sequence[Tally]) -> Tally:
    everything = Tally()
    for tally in tallies:
        everything.merge(tally)
    return everything


def _send(pipe: Connection, number: int, content: Plan | None) -> None:
    try:
        pipe.send(content)
    except OSError:
        raise _ended(number) from None


def _receive(pipe: Connection, number: int) -> _Message:
    try:
        message: _Message = pipe.recv()
    except (EOFError, OSError):
        raise _ended(number) from None
    kind, content = message
    if kind == "refused":
        raise StartError(str(content))
    return message


def _ended(number: int) -> StartError:
    return StartError(f"load process {number} ended before it was done")


def _work(pipe: Connection) -> None:
    """Entry point of a process, which is sent its plan."""
    # Ctrl-C goes to the whole process group; the parent ends its children, by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def on_ready() -> None:
        pipe.send(("ready", None))
        pipe.recv()  # blocks the event loop, on which nothing is to happen yet

    def on_report(tally: Tally) -> None:
        pipe.send(("so far", tally))

    with suppress(EOFError, ConnectionError):  # the parent is gone, and whoever wanted to know
        try:
            pipe.send(("done", run_plan(pipe.recv(), on_ready, on_report)))
        except StartError as error:
            pipe.send(("refused", str(error)))
