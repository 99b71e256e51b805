"""The down projection's arguments as the library gets them, and what is refused before."""

from __future__ import annotations

import ctypes

import pytest
import torch

from service.kernels.abi import DownArgs
from service.kernels.down import DownLauncher
from service.kernels.errors import CudaError, DeviceUnsupported, InvalidArgument

M, N, K = 5, 16, 24
STREAM = 0x1234


def tensors(dtype=torch.bfloat16) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in ((M, K), (N, K), (M, N))]


@pytest.fixture
def down(recorder) -> DownLauncher:
    return DownLauncher(recorder.library)


def recorded(down) -> dict[str, object]:
    function = down.library.functions.recorder_down_args
    function.restype = ctypes.POINTER(DownArgs)
    args = function().contents
    return {name: getattr(args, name) for name, _ in DownArgs._fields_}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_field_is_filled(down, recorder, dtype):
    _, weight, _ = tensors(dtype)
    x = torch.zeros(M, 2 * K, dtype=dtype)[:, :K]
    out = torch.zeros(M, N + 8, dtype=dtype)[:, :N]
    down.prepare(x, weight, out, 3, True)(STREAM)
    assert recorded(down) == {
        "struct_size": ctypes.sizeof(DownArgs),
        "dtype": int(dtype == torch.float16),
        "config": 3,
        "flags": 1,
        "m": M,
        "n": N,
        "k": K,
        "x": x.data_ptr(),
        "x_row_stride": 2 * K,
        "weight": weight.data_ptr(),
        "weight_row_stride": K,
        "out": out.data_ptr(),
        "out_row_stride": N + 8,
    }
    assert recorder.recorded("stream") == STREAM


def test_left_open_the_library_chooses(down):
    down.prepare(*tensors())(0)
    assert (recorded(down)["config"], recorded(down)["flags"]) == (-1, 0)


def test_the_distance_between_rows_of_one_row_does_not_matter(down):
    x = torch.zeros(K, dtype=torch.bfloat16).as_strided((1, K), (3, 1))
    out = torch.zeros(N, dtype=torch.bfloat16).as_strided((1, N), (1, 1))
    down.prepare(x, tensors()[1], out)(0)
    assert (recorded(down)["x_row_stride"], recorded(down)["out_row_stride"]) == (K, N)


@pytest.mark.parametrize(
    ("place", "wrong", "sentence"),
    [
        (
            0,
            torch.zeros(M, K),
            "x: must be of torch.bfloat16 or torch.float16, is of torch.float32",
        ),
        (0, torch.zeros(K).bfloat16(), r"x: must have 2 dimensions, has shape \[24\]"),
        (1, torch.zeros(N, K + 8).bfloat16(), "weight: must have x's 24 columns, has 32"),
        (1, torch.zeros(N, K).half(), "weight: must be of x's torch.bfloat16, is of torch.float16"),
        (1, torch.zeros(K, N).bfloat16().T, "weight: elements of a row must be adjacent, are 16"),
        (2, torch.zeros(M, N + 8).bfloat16(), r"out: must have shape \[5, 16\], has \[5, 24\]"),
        (
            1,
            torch.zeros(N, K, dtype=torch.bfloat16, requires_grad=True),
            "x, weight: must not require gradients",
        ),
    ],
)
def test_a_broken_rule_is_named(down, recorder, place, wrong, sentence):
    given = tensors()
    given[place] = wrong
    with pytest.raises(InvalidArgument, match=f"^{sentence}"):
        down.prepare(*given)
    assert recorder.recorded("launches") == 0


def test_a_tensor_on_the_cpu_is_refused(down, recorder):
    with pytest.raises(InvalidArgument, match=r"^x: must be on a CUDA device, is on cpu$"):
        down(*tensors())
    assert recorder.recorded("launches") == 0


def test_what_the_library_refuses_is_an_exception(down, recorder):
    recorder.reset(7)
    with pytest.raises(CudaError):
        down.prepare(*tensors())(0)


def test_the_real_library_validates_and_chooses(host_library):
    down = DownLauncher(host_library)
    with pytest.raises(DeviceUnsupported, match="host-only"):
        down.prepare(*tensors())(0)
    with pytest.raises(InvalidArgument, match=r"^config: must be -1 to"):
        down.prepare(*tensors(), 10_000)(0)
    chosen = host_library.down_configs[host_library.select_down(1, 896, 4864, 132)]
    assert (chosen.kernel, chosen.swap_ab) == (0, True)
    assert chosen.split_k >= 1
    with pytest.raises(InvalidArgument, match="must be 1 or more"):
        host_library.select_down(0, 896, 4864, 132)
