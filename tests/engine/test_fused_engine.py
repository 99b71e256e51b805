"""The GPU engine's logic on a device that is only a CPU: rows, slots, graphs, reports, faults."""

from __future__ import annotations

import select
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from service.engine.base import (
    Batch,
    DeviceWindow,
    DType,
    Engine,
    LendsHostMemory,
    OnGpus,
    Output,
    PinsHostMemory,
    StartsBatches,
)
from service.engine.buckets import GRAPH_BYTES
from service.engine.fused import SLOTS
from service.engine.slot import Slot
from service.errors import EngineDead, EngineError
from service.kernels.errors import CudaError
from service.kernels.transfer import DIRECT_BYTES
from tests.engine.batches import make_batch, make_model
from tests.engine.fake_device import FakeEvent, FakeStream, Operation
from tests.engine.fused_engines import (
    HIDDEN,
    LARGEST_GRAPH,
    LARGEST_TRIP,
    MAX_TOKENS,
    Made,
    assert_right,
    draw,
)


def test_it_is_what_the_service_asks_for(make) -> None:
    engine: Engine = make().engine
    assert (engine.backend, engine.device, engine.concurrency) == ("fused", "fake GPU", 2)
    assert isinstance(engine, OnGpus)
    assert isinstance(engine, LendsHostMemory)
    assert engine.gpus == ()


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize(
    "counts", [(1,), (3, 1, 4), (16,), (17,), (1, 70, 2, 90), (200,), (1,) * 60]
)
def test_each_segment_gets_its_own_rows(
    make, output: Output, dtype: torch.dtype, layer: int, counts: tuple[int, ...]
) -> None:
    made = make(dtype=dtype)
    kinds = (dtype, torch.float32, torch.float16)
    inputs = [draw(n, kinds[i % 3], seed=i) for i, n in enumerate(counts)]
    batch = make_batch(made.engine.model, inputs, layer=layer, output=output)
    made.engine.run(batch)
    assert_right(made.model, inputs, batch)
    assert made.device.replays == (sum(counts) <= LARGEST_TRIP)


def test_an_answer_may_have_another_type_than_its_input(make) -> None:
    made = make()
    inputs = [draw(5), draw(2, torch.float32)]
    batch = make_batch(made.engine.model, inputs, output_dtype=DType.FP32)
    made.engine.run(batch)
    assert_right(made.model, inputs, batch)


def test_a_read_only_input_is_served(make) -> None:
    made = make()
    batch = make_batch(made.engine.model, [draw(40)], readonly=True)
    made.engine.run(batch)
    assert_right(made.model, [draw(40)], batch)


def test_rows_of_padding_are_computed_and_never_seen(make) -> None:
    made = make(slots=1)
    full = make_batch(made.engine.model, [torch.full((16, HIDDEN), torch.inf)])
    made.engine.run(full)
    batch = make_batch(made.engine.model, [draw(9)])
    made.engine.run(batch)
    assert made.gate_up.sizes == [16, 16]
    assert_right(made.model, [draw(9)], batch)


def test_a_batch_of_a_trip_is_padded_to_it(make) -> None:
    made = make(slots=1)
    poison = make_batch(made.engine.model, [torch.full((LARGEST_TRIP, HIDDEN), torch.inf)])
    made.engine.run(poison)
    for tokens in (LARGEST_GRAPH + 1, LARGEST_TRIP):
        batch = make_batch(made.engine.model, [draw(tokens)], layer=3)
        report = made.engine.run(batch)
        assert report.kernel == f"kernel2/for_{LARGEST_TRIP}"
        assert_right(made.model, [draw(tokens)], batch)
    assert made.gate_up.sizes == [LARGEST_TRIP] * 3
    assert made.device.replays == 3


def test_large_batches_run_at_their_exact_size(make) -> None:
    made = make()
    for tokens in (33, 131, 200):
        made.engine.run(make_batch(made.engine.model, [draw(tokens)]))
    assert made.gate_up.sizes == [33, 131, 200]


@pytest.mark.parametrize(
    ("tokens", "kernel"), [(3, "kernel2/for_4"), (20, "kernel2/for_32"), (100, "kernel2/for_100")]
)
def test_a_report_says_what_ran_and_for_how_long(make, tokens: int, kernel: str) -> None:
    engine = make().engine
    report = engine.run(make_batch(engine.model, [draw(tokens)]))
    assert report.kernel == kernel
    assert report.kernels == (("kernel2", 1e-3), ("down", 1e-3))
    assert {name for name, _ in report.kernels} <= set(engine.kernels)
    assert (report.stages["h2d"], report.stages["compute"]) == (1e-3, 2e-3)
    assert 1e-3 < report.stages["d2h"] < 1
    assert report.busy_s == 2e-3


def test_gated_has_no_down(make) -> None:
    engine = make().engine
    report = engine.run(make_batch(engine.model, [draw(3)], output=Output.GATED))
    assert report.kernels == (("kernel2", 1e-3),)
    assert report.busy_s == 1e-3


def test_warm_up_captures_every_graph_and_leaves_every_thread_a_handle(make) -> None:
    made = make(slots=SLOTS)
    # 1, 2, 4, 8, 16 for the MLP, and for gated as well, whose rows are the wider ones; and 32 by a
    # trip.
    assert made.device.captures == SLOTS * (6 + 6) * len(made.model.layers)
    assert len(made.device.entered) == 1 + SLOTS


def test_two_batches_are_in_flight_and_each_gets_its_own_answers(make) -> None:
    made = make(slots=2)
    together = threading.Barrier(2, timeout=20)

    class Meeting(FakeStream):
        """On the way out, a batch waits until another has got there too."""

        def wait_event(self, event: FakeEvent) -> None:
            together.wait()

    made.device.d2h = Meeting(made.device, "d2h")
    inputs = [[draw(50, seed=i), draw(3, torch.float32, seed=i)] for i in range(8)]
    batches = [
        make_batch(made.engine.model, one, layer=3 * (i % 2)) for i, one in enumerate(inputs)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made.engine.run, batches))
    for one, batch in zip(inputs, batches, strict=True):
        assert_right(made.model, one, batch)


def test_a_batch_that_runs_out_of_memory_fails_alone(make) -> None:
    made = make(slots=1)

    def fail(x: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("out of memory")

    made.gate_up.before = fail
    for tokens in (3, 100):
        with pytest.raises(EngineError, match=rf"^batch of {tokens} tokens: out of device memory$"):
            made.engine.run(make_batch(made.engine.model, [draw(tokens)]))
    made.gate_up.before = lambda x: None
    for tokens in (3, 100):
        batch = make_batch(made.engine.model, [draw(tokens)])
        made.engine.run(batch)
        assert_right(made.model, [draw(tokens)], batch)


def test_a_lost_device_is_found_out_whatever_failed_first(make) -> None:
    """A kernel's launch is refused for what an earlier one did; only waiting tells which it was."""
    made = make()

    def refuse(x: torch.Tensor) -> None:
        raise EngineError("cudaLaunchKernelExC: an illegal memory access was encountered")

    made.gate_up.before = refuse
    with pytest.raises(EngineError) as caught:
        made.engine.run(make_batch(made.engine.model, [draw(3)]))
    assert not isinstance(caught.value, EngineDead)

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    made.device.idle = lost
    with pytest.raises(EngineDead, match=r"^batch of 3 tokens: CUDA error: an illegal .*red$"):
        made.engine.run(make_batch(made.engine.model, [draw(3)]))


def test_nothing_of_a_failed_batch_is_in_flight_when_its_owner_hears_of_it(make) -> None:
    made = make()
    waited = []
    made.device.idle = lambda: waited.append(1)
    made.gate_up.before = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.engine.run(make_batch(made.engine.model, [draw(100)]))
    assert waited == [1]


def test_rows_of_a_batch_that_failed_on_its_way_in_reach_no_other(make, monkeypatch) -> None:
    made = make(slots=1)

    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(made.device, "send", refuse)
        with pytest.raises(EngineError):
            made.engine.run(make_batch(made.engine.model, [draw(3), draw(30)]))
    inputs = [draw(19, seed=1), draw(2, seed=2)]
    batch = make_batch(made.engine.model, inputs)
    made.engine.run(batch)
    assert_right(made.model, inputs, batch)


def test_more_tokens_than_warm_up_was_told_are_refused(make) -> None:
    made = make()
    with pytest.raises(EngineError, match=r"must have at most 200 tokens, .*, has 201$"):
        made.engine.run(make_batch(made.engine.model, [draw(201)]))


def test_the_self_test_passes_and_notices_a_weight_that_changed(make) -> None:
    made = make()
    for _ in range(4):
        made.engine.self_test()
    made.model.layers[3].down[0, 0] += 1000
    made.engine.self_test()
    with pytest.raises(EngineError, match=r"^self-test: layer 3 must be within"):
        made.engine.self_test()


def test_warm_up_refuses_kernels_that_compute_something_else(make) -> None:
    one = Made(make_model(), 1)
    run = one.gate_up.run

    def swapped(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        run(x, torch.cat(weight.chunk(2)[::-1]), out)

    one.gate_up.run = swapped
    with pytest.raises(EngineError, match=r"^self-test: layer 0 must be within"):
        one.engine.warm_up(MAX_TOKENS)


def test_close_lets_go_of_weights_and_buffers(make) -> None:
    made = make()
    made.engine.close()
    assert made.engine._resident.layers == {}
    assert made.engine._slots.empty()


def test_it_pins_what_a_client_shares(make) -> None:
    made = make()
    assert isinstance(made.engine, PinsHostMemory)
    memory = memoryview(bytearray(100))
    assert made.engine.pin(memory)
    assert [nbytes for _, nbytes in made.device.pinned_by_others] == [100]
    made.engine.unpin(memory)
    assert not made.device.pinned_by_others
    made.device.refuse_pin = True
    assert not made.engine.pin(memory)


def test_from_direct_bytes_on_rows_are_copied_by_the_device(
    make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU fills a graph's piece; a truncated mapping would end whoever reads it."""
    monkeypatch.setattr("service.engine.fused.GRAPH_BYTES", LARGEST_GRAPH * 48 * 2)
    made = make()
    rows = -(-made.engine.direct_bytes // (2 * HIDDEN))
    for count, by_itself in ((rows, True), (LARGEST_GRAPH, False)):
        batch = make_batch(made.engine.model, [draw(count)])
        with made.device.watched():
            made.engine.run(batch)
        assert (Operation("h2d", "copy") in made.device.log) is by_itself
        assert_right(made.model, [draw(count)], batch)


def test_no_graph_holds_what_the_device_must_copy_by_itself() -> None:
    # From there on the library copies page-locked rows from where they are.
    assert GRAPH_BYTES + 1 >= DIRECT_BYTES


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("counts", [(1,), (3, 1, 4), (16,)])
def test_a_launched_batch_is_answered_when_it_is_finished(
    make, output: Output, counts: tuple[int, ...]
) -> None:
    made = make()
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    inputs = [draw(n, kinds[i % 3], seed=i) for i, n in enumerate(counts)]
    batch = make_batch(made.engine.model, inputs, layer=3, output=output)
    launched = made.engine.launch(batch)
    assert launched is not None
    for made.device.is_over in (False, True):
        assert launched.spin(1e-4) is made.device.is_over
    with ThreadPoolExecutor(1) as pool:
        pool.submit(launched.finish).result()
        report = pool.submit(launched.report).result()
    assert_right(made.model, inputs, batch)
    assert launched.kernel == report.kernel
    again = make_batch(made.engine.model, inputs, layer=3, output=output)
    ran = made.engine.run(again)
    assert (report.kernel, report.kernels, report.busy_s) == (ran.kernel, ran.kernels, ran.busy_s)


def test_batches_without_a_graph_are_not_launched(make) -> None:
    engine = make().engine
    assert engine.launch(make_batch(engine.model, [draw(LARGEST_GRAPH + 1)])) is None
    assert engine.expected_s(Output.MLP, LARGEST_GRAPH + 1) is None
    # From the first of a graph's timers to the last.
    assert engine.expected_s(Output.MLP, LARGEST_GRAPH - 1) == 1e-3


def test_nothing_is_known_before_the_warm_up() -> None:
    engine = Made(make_model(), 2).engine
    assert engine.expected_s(Output.MLP, 1) is None
    assert engine.launch(make_batch(engine.model, [draw(1)])) is None


def test_no_more_are_launched_than_there_are_slots(make) -> None:
    made = make(slots=2)
    batches = [make_batch(made.engine.model, [draw(2, seed=i)]) for i in range(3)]
    first, second = (made.engine.launch(batch) for batch in batches[:2])
    assert made.engine.launch(batches[2]) is None
    second.finish()
    assert made.engine.launch(batches[2]) is None, "its timers would be overwritten"
    second.report()
    third = made.engine.launch(batches[2])
    for launched in (third, first):
        launched.finish()
        launched.report()
    for index, batch in enumerate(batches):
        assert_right(made.model, [draw(2, seed=index)], batch)
    assert made.engine._slots.qsize() == 2


@pytest.mark.parametrize("error", [ValueError("rows"), torch.AcceleratorError("gone", 700)])
def test_a_launch_that_fails_gives_its_slot_back_and_waits_for_nothing(
    make, monkeypatch, error: Exception
) -> None:
    made = make(slots=1)

    def refuse(*_: object) -> None:
        raise error

    made.device.log.clear()
    kind = EngineDead if isinstance(error, torch.AcceleratorError) else ValueError
    with monkeypatch.context() as patch:
        patch.setattr(made.device, "begin_trip", refuse)
        with pytest.raises(kind):
            made.engine.launch(make_batch(made.engine.model, [draw(1)]))
    assert made.device.log == []
    assert made.engine._slots.qsize() == 1


def test_a_lost_device_is_found_out_when_a_launched_batch_is_finished(make, monkeypatch) -> None:
    made = make(slots=1)
    launched = made.engine.launch(make_batch(made.engine.model, [draw(1)]))

    def refuse(*_: object) -> None:
        raise EngineError("cudaEventSynchronize: unspecified launch failure")

    def lost() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(made.device, "end_trip", refuse)
    made.device.idle = lost
    with pytest.raises(EngineDead, match=r"^batch of 1 tokens: CUDA error: unspecified"):
        launched.finish()
    assert made.engine._slots.qsize() == 1


def collect(made: Made, count: int = 1) -> None:
    """Until so many more ends were told of."""
    for _ in range(count):
        (descriptor,) = made.engine.descriptors
        assert select.select([descriptor], [], [], 20)[0], "nothing ended"
        made.engine.collect()


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("counts", [(1,), (3, 1, 4), (17,), (20, 12)])
def test_a_started_batch_needs_no_thread_of_ours(
    make, output: Output, counts: tuple[int, ...]
) -> None:
    made = make(slots=1)
    assert isinstance(made.engine, StartsBatches)
    inputs = [draw(n, seed=i) for i, n in enumerate(counts)]
    batch = make_batch(made.engine.model, inputs, layer=3, output=output)
    outcomes: list[object] = []
    assert made.engine.start(batch, outcomes.append)
    assert made.engine._slots.qsize() == 0
    assert not made.engine.start(batch, outcomes.append), "no slot is free"
    (runner,) = made.device.runners
    # The library has addresses alone.
    ((_, kept),) = runner._kept.values()
    assert (kept.batch is batch, isinstance(kept.slot, Slot)) == (True, True)
    collect(made)
    assert runner._kept == {}
    assert_right(made.model, inputs, batch)
    assert made.engine._slots.qsize() == 1
    again = make_batch(made.engine.model, inputs, layer=3, output=output)
    report = made.engine.run(again)
    (found,) = outcomes
    assert replace(found, stages={**found.stages, "d2h": report.stages["d2h"]}) == report
    made.engine.collect()
    assert len(outcomes) == 1


@pytest.mark.parametrize(
    "tokens_and_type", [(LARGEST_TRIP + 1, torch.bfloat16), (3, torch.float32)]
)
def test_what_has_no_graph_or_another_type_is_not_started(make, tokens_and_type) -> None:
    made = make()
    tokens, dtype = tokens_and_type
    batch = make_batch(made.engine.model, [draw(2), draw(tokens - 2, dtype)])
    assert not made.engine.start(batch, lambda outcome: pytest.fail("not started"))
    batch = make_batch(made.engine.model, [draw(2)], output_dtype=DType.FP32)
    assert not made.engine.start(batch, lambda outcome: pytest.fail("not started"))
    (segment,) = make_batch(made.engine.model, [draw(2)]).segments
    window = DeviceWindow(SimpleNamespace(), 0, segment.input.nbytes)
    for moved in (segment._replace(input=window), segment._replace(output=window)):
        batch = Batch(0, Output.MLP, [moved])
        assert not made.engine.start(batch, lambda outcome: pytest.fail("not started"))
    assert made.engine._slots.qsize() == 2
    assert made.device.runners[0].started == 0


def test_a_started_batch_that_fails_is_told_of_and_leaves_its_slot(make) -> None:
    made = make(slots=1)
    (runner,) = made.device.runners
    batch = make_batch(made.engine.model, [draw(20)])
    outcomes: list[object] = []
    runner.fails = CudaError("cudaGraphLaunch: CUDA error: no")
    made.device.log.clear()
    made.engine.start(batch, outcomes.append)
    collect(made)
    assert isinstance(outcomes[0], CudaError)
    # The event loop calls this, and must not wait: the thread has.
    assert made.device.log == []
    made.engine.start(batch, outcomes.append)
    collect(made)
    assert_right(made.model, [draw(20)], batch)


def test_a_started_batch_finds_out_that_the_device_is_lost(make) -> None:
    made = make(slots=1)
    (runner,) = made.device.runners
    runner.fails, runner.lost = CudaError("cudaDeviceSynchronize: CUDA error: gone"), True
    outcomes: list[object] = []
    made.engine.start(make_batch(made.engine.model, [draw(20)]), outcomes.append)
    collect(made)
    assert isinstance(outcomes[0], EngineDead)
    assert str(outcomes[0]) == "batch of 20 tokens: cudaDeviceSynchronize: CUDA error: gone"
    assert made.engine._slots.qsize() == 1


def test_several_started_batches_each_get_their_own(make) -> None:
    made = make(slots=4)
    inputs = [draw(1 + seed % LARGEST_TRIP, seed=seed) for seed in range(40)]
    batches = [make_batch(made.engine.model, [x]) for x in inputs]
    waiting = list(batches)
    ended: list[object] = []
    while len(ended) < len(batches):
        while waiting and made.engine.start(waiting[-1], ended.append):
            waiting.pop()
        collect(made)
    assert made.engine._slots.qsize() == 4
    for x, batch in zip(inputs, batches, strict=True):
        assert_right(made.model, [x], batch)


def test_a_closed_engine_ends_its_threads(make) -> None:
    made = make()
    made.engine.close()
    assert made.device.runners[0].closed


@pytest.mark.parametrize("output", Output)
def test_it_starts_what_has_a_graph(make, output: Output) -> None:
    engine = make().engine
    found = [tokens for tokens in range(1, MAX_TOKENS + 1) if engine.starts(output, tokens)]
    assert found == list(range(1, LARGEST_TRIP + 1))


def test_an_error_behind_a_started_batch_is_its_outcome(make, monkeypatch) -> None:
    made = make(slots=1)
    outcomes: list[object] = []
    made.engine.start(make_batch(made.engine.model, [draw(20)]), outcomes.append)
    monkeypatch.setattr(made.gate_up, "choose", lambda tokens: 1 // 0)
    collect(made)
    assert isinstance(outcomes[0], ZeroDivisionError)
    assert made.engine._slots.qsize() == 1


def test_what_cannot_be_started_leaves_its_slot(make, monkeypatch) -> None:
    made = make(slots=1)

    def refuse(*_: object) -> None:
        raise EngineError("no")

    monkeypatch.setattr(made.device.runners[0], "start", refuse)
    with pytest.raises(EngineError, match="no"):
        made.engine.start(make_batch(made.engine.model, [draw(20)]), lambda outcome: None)
    assert made.engine._slots.qsize() == 1
