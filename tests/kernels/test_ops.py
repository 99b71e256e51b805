"""The custom op, as torch.compile and fake tensors see it; no GPU needed."""

from __future__ import annotations

import pytest
import torch

from service.kernels.errors import InvalidArgument
from service.kernels.library import KernelChoice
from service.kernels.swiglu import gate_up


def matrices(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.zeros(5, 16, dtype=torch.bfloat16, device=device)
    return x, torch.zeros(48, 16, dtype=torch.bfloat16, device=device)


def test_without_data_there_is_a_shape():
    x, weight = matrices("meta")
    out = gate_up(x, weight, "gelu_tanh")
    assert (out.shape, out.dtype, out.device.type) == ((5, 24), torch.bfloat16, "meta")
    assert gate_up(x, weight, out=out) is out


def test_without_data_rules_hold_as_well():
    x, weight = matrices("meta")
    with pytest.raises(InvalidArgument, match="gate_up_weight: must have x's 16 columns, has 8"):
        gate_up(x, weight[:, :8])
    with pytest.raises(InvalidArgument, match="activation"):
        gate_up(x, weight, "mish")


def test_compiling_traces_one_node_with_all_options():
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        graphs.append(graph)
        return lambda x, weight: (x.new_ones(5, 24),)

    choice = KernelChoice(3, 2, 8)

    @torch.compile(backend=keep, fullgraph=True)
    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gate_up(x, weight, "relu", choice=choice, weights_constant=True)

    assert model(*matrices()).sum() == 5 * 24
    (node,) = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert node.target is torch.ops.tilemlp.gate_up.default
    assert node.args[2:] == ("relu", 3, 2, 8, True)
    assert node.meta["example_value"].shape == (5, 24)


def test_on_the_cpu_it_is_one_sentence(recorder, monkeypatch):
    monkeypatch.setattr("service.kernels.launcher._default", [recorder])
    for call in (gate_up, torch.ops.tilemlp.gate_up):
        with pytest.raises(InvalidArgument, match=r"^x: must be on a CUDA device, is on cpu$"):
            call(*matrices())
