"""What is the small-M kernels' own: few tokens, splits of K, chains of launches."""

from __future__ import annotations

import random

import pytest
import torch

from tests.csrc import abi
from tests.csrc.cases import POISON, faults, frame_fault, make_case, reference, run_case
from tests.csrc.names import SMALL_M_NAMES

pytestmark = pytest.mark.gpu
every_config = pytest.mark.parametrize("config_name", SMALL_M_NAMES)


@every_config
def test_every_number_of_tokens(swiglu, config):
    draw = random.Random(config.name)
    faulty = [
        fault
        for m in range(1, 131)
        if (
            fault := run_case(
                swiglu,
                config,
                (m, draw.choice([8, 104, 200, 4864]), draw.choice([8, 72, 328, 896])),
                scale=draw.choice([0.02, 0.2, 1.0]),
                pad=draw.choice([0, 8, 64]),
                flags=draw.choice([0, abi.WEIGHTS_CONSTANT]),
            )
        )
    ]
    assert not faulty


@every_config
def test_every_number_of_steps_along_k(swiglu, config):
    """Fewer than the CTAs that share them, fewer than the stages, and more."""
    faulty = [
        fault
        for steps in range(1, 20)
        for k in (config.tile_k * steps - 8, config.tile_k * steps)
        if (fault := run_case(swiglu, config, (config.tile_m - 1, 136, k)))
    ]
    assert not faulty


@every_config
@pytest.mark.parametrize("flags", [0, abi.WEIGHTS_CONSTANT])
def test_a_hundred_graph_replays_with_changing_inputs(swiglu, config, flags):
    case = make_case(config.tile_m, 4864, 896, pad=0)
    args = swiglu.args(case.x, case.gate_up, case.out, config=config.id, flags=flags)
    swiglu.launch(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        swiglu.launch(args)
    for _ in range(100):
        case.x.copy_(torch.randn_like(case.x))
        case.frame.fill_(POISON)
        graph.replay()
        found = faults(case.out, *reference(case.x, case.gate_up, abi.SILU))
        assert (found or frame_fault(case)) == ""


def test_what_the_library_chooses_for_few_tokens(swiglu):
    for m in (1, 2, 8, 9, 16, 17, 31, 33, 63, 64, 65, 100, 128, 130):
        case = make_case(m, 4864, 896)
        swiglu(case.x, case.gate_up, case.out)
        found = faults(case.out, *reference(case.x, case.gate_up, abi.SILU))
        assert (found or frame_fault(case)) == ""
