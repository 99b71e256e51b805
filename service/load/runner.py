"""One load in one process."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from service.load.closed_loop import ClosedLoop
from service.load.driver import OnReport
from service.load.open_loop import OpenLoop
from service.load.plan import Plan
from service.load.tally import Tally
from service.load.transport import open_transport

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
    return run_async(_run(plan, on_ready, on_report))


async def _run(
    plan: Plan, on_ready: Callable[[], None] | None, on_report: OnReport | None
) -> Tally:
    transport = await open_transport(plan)
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
        await transport.close()
        gc.unfreeze()
    return driver.tally
