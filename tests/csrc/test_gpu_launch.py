"""Launches on a GPU: refusals, repeats, graphs, overlap, remembered tensor maps, threads."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time

import pytest
import torch
from torch.nn import functional

from tests.csrc import abi
from tests.csrc.cases import POISON, faults, frame_fault, make_case, reference, roundings_of
from tests.csrc.names import CONFIG_NAMES

pytestmark = pytest.mark.gpu
every_config = pytest.mark.parametrize("config_name", CONFIG_NAMES)


def fault_of(case, config=None, out=None) -> str:
    roundings = roundings_of(config) if config else 1
    expected = reference(case.x, case.gate_up, abi.SILU)
    return faults(case.out if out is None else out, *expected, roundings) or frame_fault(case)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 132}, "n"),
        ({"k": 60}, "k"),
        ({"m": -1}, "m"),
        ({"x": 0}, "x"),
        ({"out_row_stride": 140}, "out_row_stride"),
        ({"out_row_stride": 128}, "out_row_stride"),
        ({"gate_up_row_stride": 66}, "gate_up_row_stride"),
        ({"x_row_stride": 56}, "x_row_stride"),
        ({"swizzle": 1025}, "swizzle"),
        ({"raster": 7}, "raster"),
        ({"config": 99}, "config"),
        ({"config": 1, "dtype": 1}, "config"),
        ({"dtype": 5}, "dtype"),
        ({"activation": 9}, "activation"),
        ({"struct_size": 8}, "struct_size"),
        ({"flags": 2}, "flags"),
    ],
)
def test_a_refused_call_leaves_the_output_alone(swiglu, change, named):
    case = make_case(70, 136, 64)
    args = swiglu.args(case.x, case.gate_up, case.out, **{"config": 0, **change})
    said = swiglu.refusal(args)
    assert f": {named}: " in said
    torch.cuda.synchronize()
    assert (case.frame == POISON).all()


@pytest.mark.parametrize("name", ["x", "gate_up", "out"])
def test_a_misaligned_pointer_is_refused(swiglu, name):
    case = make_case(70, 136, 64)
    args = swiglu.args(case.x, case.gate_up, case.out)
    setattr(args, name, getattr(args, name) + 8)
    assert "SWIGLU_MISALIGNED" in swiglu.refusal(args)
    torch.cuda.synchronize()
    assert (case.frame == POISON).all()


def test_no_tokens_write_nothing(swiglu):
    case = make_case(70, 136, 64)
    swiglu(case.x[:0], case.gate_up, case.out[:0])
    torch.cuda.synchronize()
    assert (case.frame == POISON).all()


def test_no_hidden_size_writes_zeros(swiglu):
    case = make_case(70, 136, 64)
    swiglu(case.x[:, :0], case.gate_up[:, :0], case.out)
    assert (case.out == 0).all()
    assert frame_fault(case) == ""


@every_config
def test_a_thousand_repeats_are_bitwise_equal(swiglu, config):
    case = make_case(517, 1096, 840)
    weights = swiglu.weights(config, case.gate_up)
    args = swiglu.args(case.x, weights, case.out, config=config.id)
    swiglu.launch(args)
    first = case.out.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        case.out.fill_(POISON)
        swiglu.launch(args)
        differing += (case.out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(differing) == 0
    assert fault_of(case, config, first) == ""


@every_config
def test_graph_replays_read_what_is_there(swiglu, config):
    case = make_case(300, 520, 456)
    weights = swiglu.weights(config, case.gate_up)
    graph = torch.cuda.CUDAGraph()
    args = swiglu.args(case.x, weights, case.out, config=config.id)
    swiglu.launch(args)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        case.out.zero_()
        swiglu.launch(args)
    for _ in range(3):
        case.x.copy_(torch.randn_like(case.x))
        case.frame.fill_(POISON)
        graph.replay()
        assert fault_of(case, config) == ""


@every_config
@pytest.mark.parametrize("flags", [0, abi.WEIGHTS_CONSTANT])
@pytest.mark.parametrize("captured", [False, True])
def test_launches_that_overlap_wait_for_each_other(swiglu, config, flags, captured):
    """A chain a -> b -> a of launches: each reads what the last one wrote, over what it read.

    A kernel may start while the one before still runs; it must neither read the tokens nor write
    the output too early. The chain is compared with one in which every launch is waited for.
    """
    width = 1024
    start = torch.randn(777, width, device="cuda").bfloat16()
    buffers = [start.clone(), torch.empty_like(start)]
    steps = []
    for i in range(10):
        x, out = buffers[i % 2], buffers[(i + 1) % 2]
        gate_up = torch.randn(2 * width, width, device="cuda") * 0.03
        gate, up = (x.float() @ gate_up.T).split(width, dim=1)
        gate_up[width:] /= (functional.silu(gate) * up).std()  # the chain must not die away
        weights = swiglu.weights(config, gate_up.bfloat16())
        steps.append((weights, swiglu.args(x, weights, out, config=config.id, flags=flags)))
        swiglu.launch(steps[i][1])

    def chain(wait: bool) -> torch.Tensor:
        buffers[0].copy_(start)
        for _, args in steps:
            swiglu.launch(args)
            if wait:
                torch.cuda.synchronize()
        return buffers[0].clone()

    expected = chain(wait=True)
    assert 0.5 < expected.float().std() < 2
    if not captured:
        assert all(torch.equal(chain(wait=False), expected) for _ in range(20))
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain(wait=False)
    for _ in range(20):
        graph.replay()
        assert torch.equal(result, expected)


def test_other_tensors_at_the_same_addresses(swiglu):
    """Maps are remembered by everything they are made from, not by address alone."""
    x = torch.empty(200 * 1024, dtype=torch.bfloat16, device="cuda")
    weights = torch.empty(400 * 1024, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(200 * 1024, dtype=torch.bfloat16, device="cuda")
    for m, n, k in [(200, 136, 64), (100, 64, 136), (200, 136, 64), (77, 200, 328), (200, 64, 136)]:
        case = make_case(m, n, k, pad=0)
        here = [
            whole[: rows * columns].view(rows, columns)
            for whole, rows, columns in ((x, m, k), (weights, 2 * n, k), (out, m, n))
        ]
        here[0].copy_(case.x)
        here[1].copy_(case.gate_up)
        here[2].fill_(POISON)
        swiglu(*here)
        assert faults(here[2], *reference(here[0], here[1], abi.SILU)) == ""


def test_more_shapes_than_are_remembered(swiglu):
    whole = make_case(600, 136, 64)
    expected, slack = reference(whole.x, whole.gate_up, abi.SILU)
    for _ in range(2):
        for m in range(1, 600, 2):
            whole.out.fill_(POISON)
            swiglu(whole.x[:m], whole.gate_up, whole.out[:m])
            assert faults(whole.out[:m], expected[:m], slack[:m]) == ""


def test_two_threads(swiglu):
    """Each on its own stream and with shapes of its own, at the same time."""
    said: list[str] = []

    def work(sizes) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            cases = [make_case(*size) for size in sizes]
            for _ in range(50):
                for case in cases:
                    swiglu(case.x, case.gate_up, case.out)
            torch.cuda.current_stream().synchronize()
            said.extend(fault for case in cases if (fault := fault_of(case)))

    sizes = [[(100 + i, 136, 64), (333, 520 + 8 * i, 456)] for i in range(2)]
    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not said


def test_host_time_of_a_launch(swiglu):
    """One call through ctypes, fewer launches than the queue holds, median of 20."""
    case = make_case(64, 136, 64)
    args = ctypes.byref(swiglu.args(case.x, case.gate_up, case.out))
    stream = torch.cuda.current_stream().cuda_stream
    launch = swiglu.library.swiglu_launch
    spent = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(100):
            launch(args, None, 0, stream)
        spent.append((time.perf_counter() - started) * 1e4)
    assert fault_of(case) == ""
    assert statistics.median(spent) < 10
