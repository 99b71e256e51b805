"""What is Kernel-1's own: turns that change hands, partners that are missing, a second rounding.

A turn that is never handed over hangs the GPU, and the process with it: so the time limit ends the
process instead of raising where nobody listens.
"""

from __future__ import annotations

import pytest
import torch

from tests.csrc import abi
from tests.csrc.cases import (
    POISON,
    QWEN,
    faults,
    frame_fault,
    make_case,
    reference,
    roundings_of,
    run_case,
)
from tests.csrc.names import CONFIG_NAMES, KERNEL_1_NAMES

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120, method="thread")]
kernel_1 = pytest.mark.parametrize("config_name", KERNEL_1_NAMES)


@kernel_1
@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_any_number_of_tiles_on_any_number_of_clusters(swiglu, config, clusters):
    """1 to 9 tiles for 1 to 3 clusters: with and without a partner, and clusters without a tile."""
    sms = clusters * config.cluster_m * config.cluster_n
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    faulty = [
        fault
        for tiles_m in (1, 2, 3)
        for tiles_n in (1, 2, 3)
        for k in (8, 64, 72, 64 * 7)  # one stage, two, and one more than there are
        if (
            fault := run_case(
                swiglu, config, (tiles_m * rows - 3, tiles_n * columns - 8, k), num_sms=sms
            )
        )
    ]
    assert not faulty


@kernel_1
def test_ten_thousand_repeats_on_two_streams_and_in_graphs_are_bitwise_equal(swiglu, config):
    """Two streams at once with 60 multiprocessors each, an odd number of tiles for some of them."""
    cases = [make_case(517, 1096, 840), make_case(389, 2184, 328)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    firsts, differing, graphs = [], [], []
    for case, stream in zip(cases, streams, strict=True):
        args = swiglu.args(case.x, case.gate_up, case.out, config=config.id, num_sms=60)
        swiglu.launch(args)
        first, count = case.out.clone(), torch.zeros((), dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(50):
                case.out.fill_(POISON)
                swiglu.launch(args)
                count += (case.out.view(torch.int16) != first.view(torch.int16)).any()
        firsts.append(first)
        differing.append(count)
        graphs.append(graph)
    torch.cuda.synchronize()
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert [int(count) for count in differing] == [0, 0]
    for case, first in zip(cases, firsts, strict=True):
        found = faults(first, *reference(case.x, case.gate_up, abi.SILU), roundings_of(config))
        assert (found or frame_fault(case)) == ""


def ulps_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bf16 numbers lie between two."""

    def place(values):
        bits = values.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (place(a) - place(b)).abs()


@kernel_1
@pytest.mark.parametrize("model", ["0.5B", "7B"])
def test_the_two_kernels_are_at_most_one_bf16_apart(swiglu, config, model):
    """So much of an answer may change where the dispatch goes from one kernel to the other."""
    k, n = QWEN[model]
    case = make_case(2049, n, k, pad=0)
    other = torch.empty_like(case.out)
    swiglu(case.x, case.gate_up, case.out, config=config.id)
    swiglu(case.x, case.gate_up, other, config=swiglu.by_name["pp_128x192_c2x1"].id)
    apart = ulps_apart(case.out, other)
    assert int(apart.max()) <= 1
    assert int(apart.sum()) > 0  # the gate is rounded, so they are not the same


@pytest.mark.parametrize("config_name", CONFIG_NAMES)
def test_a_row_does_not_depend_on_the_others(swiglu, config):
    """The bits of a token's result are the same alone, in a batch, and anywhere in it."""
    case = make_case(2048, 1096, 904)
    weights = swiglu.weights(config, case.gate_up)
    swiglu(case.x, weights, case.out, config=config.id)
    for first, rows in ((0, 1), (0, 17), (5, 128), (1000, 129), (2047, 1)):
        part = torch.empty(rows, 1096, dtype=torch.bfloat16, device="cuda")
        swiglu(case.x[first : first + rows], weights, part, config=config.id)
        assert torch.equal(part, case.out[first : first + rows])
