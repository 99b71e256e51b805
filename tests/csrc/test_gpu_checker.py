"""The checker itself: planted errors must be found."""

from __future__ import annotations

import pytest
import torch

from tests.csrc import abi
from tests.csrc.cases import faults, frame_fault, make_case, reference

pytestmark = pytest.mark.gpu


@pytest.fixture
def case(swiglu):
    made = make_case(257, 520, 896)
    swiglu(made.x, made.gate_up, made.out)
    return made


def test_an_unharmed_output_passes(case):
    assert faults(case.out, *reference(case.x, case.gate_up, abi.SILU)) == ""
    assert frame_fault(case) == ""


def test_one_corrupted_element_is_found(case):
    case.out[200, 77] = case.out[200, 77].item() * 1.02
    said = faults(case.out, *reference(case.x, case.gate_up, abi.SILU))
    assert said.startswith("1 elements off, first [200, 77]")


def test_swapped_halves_are_found(swiglu, case):
    n = case.out.shape[1]
    swiglu(case.x, torch.cat([case.gate_up[n:], case.gate_up[:n]]), case.out)
    assert faults(case.out, *reference(case.x, case.gate_up, abi.SILU)) != ""


def test_an_unwritten_element_is_found(case):
    case.out[256, 519] = float("nan")
    assert faults(case.out, *reference(case.x, case.gate_up, abi.SILU)) != ""


def test_a_write_to_a_guard_row_is_found(case):
    case.frame[0, 0] = 1
    assert frame_fault(case) != ""
