"""Weights bound once give the library the same arguments, and refuse the same tensors."""

from __future__ import annotations

import random

import pytest
import torch

from service.kernels.abi import Args, Raster
from service.kernels.bound import BoundLauncher
from service.kernels.checks import check_tensors
from service.kernels.errors import CudaError, InvalidArgument
from service.kernels.launcher import LIBRARY_CHOOSES
from service.kernels.library import KernelChoice
from tests.kernels.test_launcher import BROKEN, K, M, N, tensors


def fields(args: Args) -> dict[str, object]:
    return {name: getattr(args, name) for name, _ in Args._fields_}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, M])
def test_the_arguments_are_those_of_the_unbound_call(recorder, dtype, rows):
    _, weight, _ = tensors(dtype)
    x = torch.zeros(M, 2 * K, dtype=dtype)[:rows, :K]
    out = torch.zeros(M, N + 8, dtype=dtype)[:rows, :N]
    choice = KernelChoice(3, Raster.ALONG_N, 4)
    recorder.enqueue(x, weight, out, "gelu_tanh", choice, 1, 0x1234)
    expected = fields(recorder.args)
    recorder.reset()
    bound = BoundLauncher(recorder, weight, "gelu_tanh", choice=choice, weights_constant=True)
    bound.enqueue(x, out, 0x1234)
    assert fields(recorder.args) == expected
    assert recorder.recorded("stream") == 0x1234


def test_a_prepared_launch_is_the_bound_one(recorder):
    x, weight, out = tensors()
    bound = BoundLauncher(recorder, weight)
    bound.enqueue(x, out, 0x1234)
    expected = fields(recorder.args)
    prepared = bound.prepare(x, out)
    recorder.reset()
    prepared(0x1234)
    assert fields(recorder.args) == expected
    assert recorder.recorded("stream") == 0x1234
    with pytest.raises(InvalidArgument, match=r"^out: must have shape \[5, 24\]"):
        bound.prepare(x, out[:, :16])


def test_a_prepared_launch_keeps_its_tensors(recorder):
    x, weight, out = tensors()
    prepared = BoundLauncher(recorder, weight).prepare(x[:2], out[:2])
    assert (prepared.x.data_ptr(), prepared.out.data_ptr()) == (x.data_ptr(), out.data_ptr())
    recorder.reset(7)
    with pytest.raises(CudaError):
        prepared(0)


def test_left_open_everything_is_the_librarys_choice(recorder):
    x, weight, out = tensors()
    recorder.enqueue(x, weight, out, "silu", LIBRARY_CHOOSES, 0, 0)
    expected = fields(recorder.args)
    BoundLauncher(recorder, weight).enqueue(x, out, 0)
    assert fields(recorder.args) == expected


@pytest.mark.parametrize("sentence", [text for text, given in BROKEN.items() if "weight" in given])
def test_weights_are_checked_when_they_are_bound_or_used(recorder, sentence):
    x, _, out = tensors()
    weight = BROKEN[sentence]["weight"]
    if weight.requires_grad:
        assert not BoundLauncher(recorder, weight).gate_up_weight.requires_grad
        return
    with pytest.raises(InvalidArgument):
        BoundLauncher(recorder, weight)(x, out)
    assert recorder.recorded("launches") == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dtype": torch.float32}, "gate_up_weight: must be of torch.bfloat16 or torch.float16"),
        ({"size": (2 * N - 1, K)}, "gate_up_weight: must have an even number of rows, has 47"),
        ({"size": (K,)}, "gate_up_weight: must have 2 dimensions, has shape \\[16\\]"),
    ],
)
def test_weights_that_no_call_could_use_are_refused_at_once(recorder, wrong, sentence):
    weight = torch.zeros(**{"size": (2 * N, K), "dtype": torch.bfloat16, **wrong})
    with pytest.raises(InvalidArgument, match=f"^{sentence}"):
        BoundLauncher(recorder, weight)
    with pytest.raises(InvalidArgument, match=r"^activation: must be one of"):
        BoundLauncher(recorder, tensors()[1], "mish")


@pytest.mark.parametrize(
    "sentence", [text for text, given in BROKEN.items() if "weight" not in given]
)
def test_tokens_and_output_are_checked_at_every_call(recorder, sentence):
    x, weight, out = tensors()
    given = {"x": x, "out": out, **BROKEN[sentence]}
    with pytest.raises(InvalidArgument):
        BoundLauncher(recorder, weight)(given["x"], given["out"])
    assert recorder.recorded("launches") == 0


def test_the_quick_look_never_passes_what_the_check_refuses(recorder):
    choose = random.Random(0)
    weight = tensors()[1]
    bound = BoundLauncher(recorder, weight)
    shapes = [(1, K), (K,), (0, K), (M, 0), (2, M, K), (M, 2 * K)]
    passed = refused = 0
    for _ in range(20_000):
        two = []
        for usual in ((M, K), (M, N)):
            shape = usual if choose.random() < 0.8 else choose.choice(shapes)
            dtype = torch.bfloat16 if choose.random() < 0.9 else torch.float16
            tensor = torch.empty(shape, dtype=dtype, requires_grad=choose.random() < 0.05)
            two.append(tensor.mT if tensor.dim() == 2 and choose.random() < 0.05 else tensor)
        sound = bound._is_sound(*two)
        passed += sound
        try:
            check_tensors(two[0], weight, two[1])
        except InvalidArgument:
            refused += 1
            assert not sound
    assert passed > 1000
    assert refused > 1000


def test_a_tensor_on_the_cpu_is_refused(recorder):
    x, weight, out = tensors()
    with pytest.raises(InvalidArgument, match=r"^x: must be on a CUDA device, is on cpu$"):
        BoundLauncher(recorder, weight)(x, out)


def test_what_the_library_refuses_is_an_exception(recorder):
    x, weight, out = tensors()
    recorder.reset(7)
    with pytest.raises(CudaError):
        BoundLauncher(recorder, weight).enqueue(x, out, 0)


def test_a_workspace_is_lent_where_the_library_wants_one(recorder):
    x, weight, out = tensors()
    recorder.reset(workspace_bytes=100)
    BoundLauncher(recorder, weight).enqueue(x, out, 0)
    assert (recorder.recorded("launches"), recorder.recorded("workspace_bytes")) == (2, 100)
