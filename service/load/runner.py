"""One load in one process."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from service.errors import StartError
from service.interruption import Interruption
from service.load.closed_loop import ClosedLoop
from service.load.driver import OnReport
from service.load.open_loop import OpenLoop
from service.load.plan import Plan
from service.load.stop_signals import StopSignals
from service.load.tally import Tally
from service.load.transport import TensorTransport, open_transport

# For the service to be told, where the load ends early.
LET_GO_TIMEOUT_S = 3.0

_Result = TypeVar("_Result")


def run_async(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end on uvloop, or on asyncio where there is none (Windows)."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(main)
    result: _Result = uvloop.run(main)
    return result


def run_plan(
    plan: Plan, on_ready: Callable[[], None] | None = None, on_report: OnReport | None = None
) -> Tally:
    """Measure one load and return what was counted.

    Args:
        plan: What to do.
        on_ready: Called when all connections are open; may block until the load is to start.
        on_report: Called every half second with what was counted so far.

    Raises:
        StartError: not all connections can be made.
    """
    with StopSignals() as signals:
        return run_async(_run(plan, signals, on_ready, on_report))


async def _run(
    plan: Plan,
    signals: StopSignals,
    on_ready: Callable[[], None] | None,
    on_report: OnReport | None,
) -> Tally:
    # To its end, even if stopped meanwhile: what the service was told of has to be taken back.
    opening = asyncio.ensure_future(open_transport(plan))
    try:
        with _interrupted_by(signals):
            transport = await asyncio.shield(opening)
            tally = await _drive(plan, transport, on_ready, on_report)
    except BaseException:
        with suppress(StartError, asyncio.TimeoutError):  # the first error is the one to tell
            await asyncio.wait_for(_close(opening), LET_GO_TIMEOUT_S)
        raise
    await transport.close()
    return tally


async def _drive(
    plan: Plan,
    transport: TensorTransport,
    on_ready: Callable[[], None] | None,
    on_report: OnReport | None,
) -> Tally:
    kind = ClosedLoop if plan.rate_per_s is None else OpenLoop
    driver = kind(plan, transport)
    # Payloads and modules are here to stay; walking them would be pauses that look like latency.
    gc.collect()
    gc.freeze()
    try:
        await driver.open_connections()
        if on_ready is not None:
            on_ready()
        await driver.run(on_report)
    finally:
        await driver.close()
        gc.unfreeze()
    return driver.tally


async def _close(opening: Awaitable[TensorTransport]) -> None:
    await (await opening).close()


@contextmanager
def _interrupted_by(signals: StopSignals) -> Iterator[None]:
    """Raise _Stopped in the task when one is caught."""
    loop, interruption = asyncio.get_running_loop(), Interruption()
    inside = True

    def end() -> None:
        if inside:
            interruption.end(_Stopped())

    try:
        with interruption, signals.calling(lambda: loop.call_soon_threadsafe(end)):
            yield
    finally:
        inside = False


class _Stopped(Exception):
    """A signal ends the load; it has its effect afterwards."""
