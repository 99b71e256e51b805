"""In what order the fused engine's streams and threads wait for each other."""

from __future__ import annotations

import gc
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from service.engine import cuda_device
from service.engine.base import Batch, Output
from service.engine.cuda_device import CudaDevice
from service.engine.slot import Slot
from service.engine.warm_up import prepare_threads
from service.errors import EngineError
from tests.engine.batches import make_batch, make_model
from tests.engine.fake_device import FakeDevice, Operation
from tests.engine.fused_engines import (
    MAX_TOKENS,
    Made,
    draw,
)


def watch(made: Made, batch: Batch) -> list[Operation]:
    """Run a batch; what happened, with rows in and out of pinned memory as `fill` and `empty`."""
    made.gate_up.before = lambda x: made.device.note("gate/up")
    with made.device.watched():
        made.engine.run(batch)
    return list(made.device.log)


def assert_order(log: list[Operation], *steps: Operation) -> None:
    """All of a step comes before any of the next."""
    for step in steps:
        assert step in log, f"never: {step}"
    for earlier, later in pairwise(steps):
        last = len(log) - 1 - log[::-1].index(earlier)
        assert last < log.index(later), f"not all before {later}: {earlier}"


def the_slot(made: Made) -> Slot:
    slot = made.engine._slots.get()
    made.engine._slots.put(slot)
    return slot


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("tokens", [33, 40, 200])
def test_streams_of_a_large_batch_wait_for_each_other(make, output: Output, tokens: int) -> None:
    made = make(slots=1)
    slot = the_slot(made)
    batch = make_batch(made.engine.model, [draw(tokens)], output=output)
    log = watch(made, batch)
    arrived, done, end = slot.timers.arrived, slot.done, slot.timers.end
    # Its own beginning: gate/up may have ended long before down is launched.
    down = [
        Operation("compute", "record", slot.timers.down_started),
        Operation("compute", "down"),
        Operation("compute", "record", slot.timers.computed),
    ]
    assert_order(
        log,
        Operation("h2d", "copy"),
        Operation("h2d", "record", arrived),
        Operation("compute", "wait", arrived),
        Operation("compute", "record", slot.timers.started),
        Operation("compute", "gate/up"),
        Operation("compute", "record", slot.timers.gated),
        *(down if output is Output.MLP else []),
        Operation("compute", "record", done),
        Operation("d2h", "wait", done),
        Operation("d2h", "copy"),
        Operation("d2h", "record", end),
        Operation("host", "wait", end),
        Operation("host", "empty"),
    )
    assert {one.where for one in log if one.what == "copy"} == {"h2d", "d2h"}


@pytest.mark.parametrize("output", Output)
def test_streams_of_a_trip_wait_for_each_other(make, output: Output) -> None:
    made = make(slots=1)
    slot = the_slot(made)
    batch = make_batch(made.engine.model, [draw(20), draw(7)], output=output)
    log = watch(made, batch)
    timers = slot.trip_timers
    assert_order(
        log,
        Operation("h2d", "record", timers.begin),
        Operation("h2d", "copy"),
        Operation("h2d", "record", timers.arrived),
        Operation("compute", "wait", timers.arrived),
        Operation("compute", "replay"),
        Operation("beside", "record", timers.started),
        Operation("compute", "gate/up"),
        Operation("beside", "record", timers.gated),
        *([Operation("compute", "down")] if output is Output.MLP else []),
        *([Operation("beside", "record", timers.computed)] if output is Output.MLP else []),
        Operation("compute", "join"),
        Operation("compute", "record", slot.done),
        Operation("d2h", "wait", slot.done),
        Operation("d2h", "copy"),
        Operation("d2h", "record", timers.end),
        Operation("host", "wait", timers.end),
        Operation("host", "empty"),
    )


@pytest.mark.parametrize("output", Output)
def test_answers_of_a_graph_are_read_when_it_is_over(make, output: Output) -> None:
    made = make(slots=1)
    slot = the_slot(made)
    batch = make_batch(made.engine.model, [draw(3), draw(5)], output=output)
    log = watch(made, batch)
    timers = slot.graph_timers
    assert_order(
        log,
        Operation("host", "fill"),
        Operation("compute", "replay"),
        Operation("beside", "record", timers.begin),
        Operation("beside", "record", timers.started),
        Operation("compute", "gate/up"),
        Operation("beside", "record", timers.gated),
        *([Operation("compute", "down")] if output is Output.MLP else []),
        *([Operation("beside", "record", timers.computed)] if output is Output.MLP else []),
        Operation("compute", "join"),
        Operation("compute", "record", timers.end),
        Operation("host", "wait", timers.end),
        Operation("host", "empty"),
    )
    assert {one.where for one in log if one.what in {"copy", "gate/up", "down"}} == {"compute"}


def test_graphs_are_captured_when_every_kernel_has_run_and_ended() -> None:
    made = Made(make_model(), 2)
    made.gate_up.before = lambda x: made.device.note("gate/up")
    made.engine.warm_up(MAX_TOKENS)
    before = made.device.log[: made.device.log.index(Operation("compute", "capture"))]
    assert_order(before, Operation("compute", "gate/up"), Operation("host", "wait"))


def test_threads_that_prepare_live_until_each_has_a_handle(monkeypatch) -> None:
    """One that ends hands its handle on: two would have one, and the engine's threads too few."""
    model, device = make_model(), FakeDevice()
    slots = [Slot(device, model.spec, 1) for _ in range(3)]
    there: list[threading.Thread] = []
    alive: list[bool] = []
    product = torch.mm

    def slow(*args, **options):
        there.append(threading.current_thread())
        time.sleep(0.1 * len(there))
        alive.extend(thread.is_alive() for thread in list(there))
        return product(*args, **options)

    monkeypatch.setattr(torch, "mm", slow)
    prepare_threads(device, slots, model.layers[0], 4)
    assert len(set(there)) == 4
    assert all(alive)


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_bears_other_threads_and_ends_whatever_happens(monkeypatch, fails: bool) -> None:
    calls: list[object] = []

    class Graph:
        def __init__(self, *, keep_graph: bool) -> None:
            # Torch takes it away where it is to launch it.
            assert keep_graph

        def raw_cuda_graph(self) -> int:
            return 17

        def capture_begin(self, pool: object, capture_error_mode: str) -> None:
            calls.append((pool, capture_error_mode))

        def capture_end(self) -> None:
            calls.append("end")

    def enqueue() -> None:
        calls.append("enqueue")
        # What it finds may be graphs of another engine, and to let go of one ends the capture.
        assert not gc.isenabled()
        if fails:
            raise EngineError("no such kernel")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    device = CudaDevice.__new__(CudaDevice)
    device._pool = "pool"
    device.compute = SimpleNamespace(cuda_stream=7)
    device._transfer = SimpleNamespace(graph=lambda *about: calls.append(about[:2]))
    if fails:
        with pytest.raises(EngineError, match="no such kernel"):
            device.capture(enqueue)
    else:
        device.capture(enqueue)
    assert gc.isenabled()
    # In global mode an upload that is pinned meanwhile would fail, and the capture with it.
    started = [("pool", "thread_local"), "enqueue", "end"]
    assert calls == (started if fails else [*started, (17, 7)])


def test_a_thread_comes_back_to_the_stream_of_its_engine(monkeypatch) -> None:
    """Another engine has run in it since, on the same GPU or on another."""
    where = {"device": 0, "stream": 0}
    compute = SimpleNamespace(cuda_stream=7, query=lambda: True)
    monkeypatch.setattr(cuda_device, "current_device", lambda: where["device"])
    monkeypatch.setattr(cuda_device, "stream_of", lambda index: where["stream"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    set_to: list[object] = []

    def set_stream(stream) -> None:
        set_to.append(stream)
        where.update(device=1, stream=stream.cuda_stream)

    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    device = CudaDevice.__new__(CudaDevice)
    device.device, device.compute = torch.device("cuda", 1), compute
    for change in ({}, {"stream": 9}, {"device": 0}):
        where.update(change)
        device.enter()
        device.enter()
    assert set_to == [compute] * 3
