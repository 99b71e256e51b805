"""Every instance of the down projection against FP64; launches, graphs, and behind gate/up."""

from __future__ import annotations

import random

import pytest
import torch

from tests.csrc import abi
from tests.csrc.cases import (
    POISON,
    QWEN,
    down_reference,
    faults,
    frame_fault,
    make_case,
    make_down_case,
    padded,
)
from tests.csrc.names import DOWN_NAMES

pytestmark = pytest.mark.gpu
every_config = pytest.mark.parametrize("down_config_name", DOWN_NAMES)


@pytest.fixture
def draw(down_config_name):
    return random.Random(down_config_name)


def fault_of(case) -> str:
    return faults(case.out, *down_reference(case.x, case.gate_up)) or frame_fault(case)


def run_all(swiglu, config, shapes, draw, dtype=torch.bfloat16) -> None:
    faulty = []
    for shape in shapes:
        scale, pad, flags = (
            draw.choice([0.02, 0.2, 1.0]),
            draw.choice([0, 8, 64]),
            draw.choice([0, 1]),
        )
        case = make_down_case(*shape, scale=scale, dtype=dtype, pad=pad)
        swiglu.down(case.x, case.gate_up, case.out, config=config.id, flags=flags)
        if fault := fault_of(case):
            faulty.append(f"M, N, K {shape} scale {scale} pad {pad} flags {flags}: {fault}")
    assert not faulty


def test_the_names_are_those_of_the_library(swiglu):
    assert [config.name.decode() for config in swiglu.down_configs] == DOWN_NAMES


@every_config
def test_every_number_of_tokens(swiglu, down_config, draw):
    shapes = [
        (m, draw.choice([8, 72, 200, 896]), draw.choice([8, 136, 1032, 4872]))
        for m in range(1, 131)
    ]
    run_all(swiglu, down_config, shapes, draw)


@every_config
def test_every_width_and_depth_of_a_tile(swiglu, down_config, draw):
    ns = [*range(8, down_config.tile_n + 9, 8), 3 * down_config.tile_n]
    step = down_config.tile_k
    ks = [8, 72, step - 8, step, step + 8, step * (down_config.split_k + 1), 40 * step + 8]
    run_all(swiglu, down_config, [(draw.choice([1, 7, 130]), n, k) for n in ns for k in ks], draw)


@pytest.mark.parametrize("model", QWEN)
def test_models(swiglu, model):
    n, k = QWEN[model]
    case = make_down_case(33, n, k, pad=0)
    expected, slack = down_reference(case.x, case.gate_up)
    for config in swiglu.down_configs:
        case.out.fill_(POISON)
        swiglu.down(case.x, case.gate_up, case.out, config=config.id)
        assert (faults(case.out, expected, slack) or frame_fault(case)) == "", config.name


def test_fp16(swiglu):
    draw = random.Random(0)
    for config in swiglu.down_configs:
        if config.all_types:
            shapes = [(129, 200, 328), (16, 896, 4864), (1, 8, 8)]
            run_all(swiglu, config, shapes, draw, torch.float16)


def test_what_the_library_chooses(swiglu):
    draw = random.Random(0)
    for dtype in (torch.bfloat16, torch.float16):
        for m in (1, 8, 9, 17, 33, 64, 65, 128, 129, 300):
            case = make_down_case(m, 896, 4864, scale=draw.choice([0.02, 0.5]), dtype=dtype)
            swiglu.down(case.x, case.gate_up, case.out)
            assert fault_of(case) == ""


@every_config
def test_infinities_and_nan_pass_through(swiglu, down_config):
    x = torch.zeros(3, 64, dtype=torch.bfloat16, device="cuda")
    x[:, 0] = torch.tensor([1.0, -1.0, 0.0])
    weight = torch.zeros(16, 64, dtype=torch.bfloat16, device="cuda")
    weight[0, 0], weight[9, 0], weight[15, 0] = float("inf"), float("nan"), 3e38
    out = torch.full((3, 16), POISON, dtype=torch.bfloat16, device="cuda")
    swiglu.down(x, weight, out, config=down_config.id)
    expected = (x.float() @ weight.float().T).bfloat16()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 132}, "n"),
        ({"k": 60}, "k"),
        ({"x": 0}, "x"),
        ({"weight_row_stride": 66}, "weight_row_stride"),
        ({"out_row_stride": 128}, "out_row_stride"),
        ({"config": 99}, "config"),
        ({"flags": 2}, "flags"),
    ],
)
def test_a_refused_call_leaves_the_output_alone(swiglu, change, named):
    case = make_down_case(70, 136, 64)
    said = swiglu.down_refusal(swiglu.down_args(case.x, case.gate_up, case.out, **change))
    assert f": {named}: " in said
    torch.cuda.synchronize()
    assert (case.frame == POISON).all()


def test_no_depth_writes_zeros(swiglu):
    case = make_down_case(70, 136, 64)
    swiglu.down(case.x[:, :0], case.gate_up[:, :0], case.out)
    assert (case.out == 0).all()
    assert frame_fault(case) == ""


@every_config
def test_a_thousand_repeats_are_bitwise_equal(swiglu, down_config):
    case = make_down_case(65, 1096, 4840)
    args = swiglu.down_args(case.x, case.gate_up, case.out, config=down_config.id)
    swiglu.launch_down(args)
    first = case.out.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        case.out.fill_(POISON)
        swiglu.launch_down(args)
        differing += (case.out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(differing) == 0


@every_config
def test_a_row_does_not_depend_on_the_others(swiglu, down_config):
    case = make_down_case(300, 1096, 4840)
    swiglu.down(case.x, case.gate_up, case.out, config=down_config.id)
    for first, rows in ((0, 1), (0, 17), (5, 128), (299, 1)):
        part = torch.empty(rows, 1096, dtype=torch.bfloat16, device="cuda")
        swiglu.down(case.x[first : first + rows], case.gate_up, part, config=down_config.id)
        assert torch.equal(part, case.out[first : first + rows])


@every_config
@pytest.mark.parametrize("flags", [0, abi.WEIGHTS_CONSTANT])
def test_behind_gate_up_in_one_graph(swiglu, down_config, flags):
    """A hundred replays with changing inputs; down starts while gate/up still runs."""
    tokens, hidden, intermediate = 16, 896, 4864
    case = make_case(tokens, intermediate, hidden, scale=0.05)
    weight = padded(hidden, intermediate, 0, torch.bfloat16)
    weight.copy_(torch.randn(hidden, intermediate, device="cuda") * 0.02)
    out = torch.full((tokens, hidden), POISON, dtype=torch.bfloat16, device="cuda")
    gate_up = swiglu.args(case.x, case.gate_up, case.out, flags=flags)
    down = swiglu.down_args(case.out, weight, out, config=down_config.id, flags=flags)
    swiglu.launch(gate_up)
    swiglu.launch_down(down)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            swiglu.launch(gate_up)
            swiglu.launch_down(down)
    for _ in range(100):
        case.x.copy_(torch.randn_like(case.x))
        case.out.fill_(POISON)
        out.fill_(POISON)
        graph.replay()
        assert faults(out, *down_reference(case.out, weight)) == ""
