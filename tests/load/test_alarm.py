import asyncio
import sys
import time

import pytest

from service.load.alarm import Alarm
from service.load.runner import run_async

MS = 1_000_000
needs_timerfd = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.fixture(params=[pytest.param("timerfd", marks=needs_timerfd), "loop timer"])
def kind(request, monkeypatch):
    monkeypatch.setattr("service.load.alarm._HAS_TIMERFD", request.param == "timerfd")
    return request.param


def fired(plan):
    """Times at which an alarm fired, while `plan` (a coroutine function) used it, and after."""
    times = []

    async def main():
        alarm = Alarm(lambda: times.append(time.monotonic_ns()))
        try:
            await plan(alarm)
        finally:
            alarm.close()
        await asyncio.sleep(0.02)

    run_async(main())
    return times


def test_it_fires_once_and_not_early(kind):
    due = time.monotonic_ns() + 30 * MS

    async def plan(alarm):
        alarm.set(due)
        await asyncio.sleep(0.1)

    (at,) = fired(plan)
    # A loop rounds its timers to milliseconds, either way.
    assert at - due > (0 if kind == "timerfd" else -2 * MS)


def test_a_time_that_has_passed_is_now(kind):
    async def plan(alarm):
        alarm.set(0)
        await asyncio.sleep(0.03)
        alarm.set(time.monotonic_ns() - 1000 * MS)
        await asyncio.sleep(0.03)

    assert len(fired(plan)) == 2


def test_setting_again_replaces(kind):
    start = time.monotonic_ns()

    async def plan(alarm):
        alarm.set(start + 10 * MS)
        alarm.set(start + 60 * MS)
        await asyncio.sleep(0.1)

    (at,) = fired(plan)
    assert at - start > 50 * MS


def test_closed_it_stays_silent(kind):
    async def plan(alarm):
        alarm.set(time.monotonic_ns() + 5 * MS)

    assert fired(plan) == []


@needs_timerfd
def test_precise_to_a_fraction_of_a_millisecond():
    due = []

    async def plan(alarm):
        for _ in range(41):
            due.append(time.monotonic_ns() + 1_300_000)
            alarm.set(due[-1])
            await asyncio.sleep(0.005)

    lateness = sorted(at - at_best for at, at_best in zip(fired(plan), due, strict=True))
    # The median, since the machine may be busy. A loop's own timer would be late by 0.7 ms.
    assert 0 < lateness[20] < 500_000
