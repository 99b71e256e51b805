"""From tensors to the argument struct, and from a status to an exception; no GPU needed."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch

from service.errors import EngineError
from service.kernels.abi import Args, Raster, Status
from service.kernels.checks import check_tensors, empty_output
from service.kernels.errors import CudaError, DeviceUnsupported, InvalidArgument, KernelError
from service.kernels.launcher import LIBRARY_CHOOSES, Launcher, _is_sound
from service.kernels.library import KernelChoice

M, N, K = 5, 24, 16


def tensors(dtype=torch.bfloat16) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in ((M, K), (2 * N, K), (M, N))]


def test_every_field_is_filled(recorder):
    x, weight, out = tensors(torch.float16)
    choice = KernelChoice(7, Raster.ALONG_N, 4)
    recorder.enqueue(x, weight, out, "relu", choice, 1, 0x1234)
    args = recorder.args
    assert {name: getattr(args, name) for name, _ in Args._fields_} == {
        "struct_size": ctypes.sizeof(Args),
        "dtype": 1,
        "activation": 2,
        "config": 7,
        "raster": 2,
        "swizzle": 4,
        "num_sms": 0,
        "flags": 1,
        "m": M,
        "n": N,
        "k": K,
        "x": x.data_ptr(),
        "x_row_stride": K,
        "gate_up": weight.data_ptr(),
        "gate_up_row_stride": K,
        "out": out.data_ptr(),
        "out_row_stride": N,
    }
    assert recorder.recorded("stream") == 0x1234
    assert recorder.recorded("workspace_bytes") == 0


def test_strides_are_those_of_the_rows(recorder):
    x = torch.zeros(M, 2 * K, dtype=torch.bfloat16)[:, 8 : 8 + K]
    weight = torch.zeros(4 * N, K, dtype=torch.bfloat16)[::2]
    out = torch.zeros(M, N + 8, dtype=torch.bfloat16)[:, :N]
    check_tensors(x, weight, out)
    recorder.enqueue(x, weight, out, "silu", LIBRARY_CHOOSES, 0, 0)
    args = recorder.args
    assert (args.x, args.x_row_stride) == (x.data_ptr(), 2 * K)
    assert args.gate_up_row_stride == 2 * K
    assert args.out_row_stride == N + 8
    assert (args.config, args.raster, args.swizzle) == (-1, 0, 0)


def test_the_distance_between_rows_of_one_row_does_not_matter(recorder):
    x = torch.zeros(K, dtype=torch.bfloat16).as_strided((1, K), (3, 1))
    out = torch.zeros(N, dtype=torch.bfloat16).as_strided((1, N), (1, 1))
    recorder.enqueue(x, tensors()[1], out, "silu", LIBRARY_CHOOSES, 0, 0)
    assert (recorder.args.x_row_stride, recorder.args.out_row_stride) == (K, N)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_ARGUMENT, InvalidArgument),
        (Status.INVALID_SHAPE, InvalidArgument),
        (Status.MISALIGNED, InvalidArgument),
        (Status.NOT_COMPILED, InvalidArgument),
        (Status.UNSUPPORTED_DEVICE, DeviceUnsupported),
        (Status.CUDA_ERROR, CudaError),
        (Status.INTERNAL, KernelError),
        (99, KernelError),
    ],
)
def test_a_status_is_an_exception_with_the_librarys_sentence(recorder, status, kind):
    recorder.reset(int(status))
    with pytest.raises(KernelError) as caught:
        recorder.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0)
    assert type(caught.value) is kind
    assert isinstance(caught.value, EngineError)
    assert str(caught.value) == "k: must be a multiple of 8, is 900"
    assert recorder.recorded("launches") == 1


def test_what_the_real_library_refuses_is_an_exception(host_library):
    launcher = Launcher(host_library)
    x, weight, out = torch.zeros(3, 12), torch.zeros(16, 12), torch.zeros(3, 8)
    odd = [tensor.bfloat16() for tensor in (x, weight, out)]
    with pytest.raises(InvalidArgument, match=r"^k: must be a multiple of 8, is 12$"):
        launcher.enqueue(*odd, "silu", LIBRARY_CHOOSES, 0, 0)
    with pytest.raises(InvalidArgument, match=r"^swizzle: must be .*, is -1$"):
        launcher.enqueue(*tensors(), "silu", KernelChoice(swizzle=-1), 0, 0)
    with pytest.raises(DeviceUnsupported, match="host-only"):
        launcher.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0)


def test_an_unknown_activation_is_named(recorder):
    with pytest.raises(InvalidArgument, match="one of silu, gelu_tanh, relu, is 'mish'"):
        recorder.enqueue(*tensors(), "mish", LIBRARY_CHOOSES, 0, 0)
    assert recorder.recorded("launches") == 0


def test_a_workspace_is_lent_where_the_library_wants_one(recorder):
    recorder.reset(workspace_bytes=100)
    recorder.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0)
    assert (recorder.recorded("launches"), recorder.recorded("workspace_bytes")) == (2, 100)
    first = recorder.recorded("workspace")
    assert first != 0
    recorder.reset(workspace_bytes=50)
    recorder.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0)
    assert (recorder.recorded("workspace"), recorder.recorded("workspace_bytes")) == (first, 100)
    # Another stream may run at the same time.
    recorder.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0x1234)
    assert recorder.recorded("workspace") not in (0, first)


def test_calls_do_not_share_arguments(recorder):
    """The library reads them without the GIL, while another thread may prepare its own."""
    first, second = [], []
    recorder._launch = lambda args, *_: first.append(args) or 0
    recorder.enqueue(*tensors(), "silu", LIBRARY_CHOOSES, 0, 0)
    kept = bytes(first[0])
    recorder._launch = lambda args, *_: second.append(args) or 0
    recorder.enqueue(*tensors(torch.float16), "relu", LIBRARY_CHOOSES, 0, 0)
    assert first[0] == kept != second[0]


BROKEN = {
    "x: must be of torch.bfloat16 or torch.float16, is of torch.float32": {
        "x": torch.zeros(M, K),
    },
    "gate_up_weight: must be of x's torch.bfloat16, is of torch.float16": {
        "weight": torch.zeros(2 * N, K, dtype=torch.float16)
    },
    "out: must be of x's torch.bfloat16, is of torch.float32": {"out": torch.zeros(M, N)},
    "x: must have 2 dimensions, has shape [16]": {"x": torch.zeros(K, dtype=torch.bfloat16)},
    "out: must have 2 dimensions, has shape [1, 5, 24]": {
        "out": torch.zeros(1, M, N, dtype=torch.bfloat16)
    },
    "gate_up_weight: must be on x's cpu, is on meta": {
        "weight": torch.zeros(2 * N, K, dtype=torch.bfloat16, device="meta")
    },
    "out: must be on x's cpu, is on meta": {
        "out": torch.zeros(M, N, dtype=torch.bfloat16, device="meta")
    },
    "x: elements of a row must be adjacent, are 5 apart": {
        "x": torch.zeros(K, M, dtype=torch.bfloat16).T
    },
    "gate_up_weight: elements of a row must be adjacent, are 2 apart": {
        "weight": torch.zeros(2 * N, 2 * K, dtype=torch.bfloat16)[:, ::2]
    },
    "out: elements of a row must be adjacent, are 5 apart": {
        "out": torch.zeros(N, M, dtype=torch.bfloat16).T
    },
    "gate_up_weight: must have x's 16 columns, has 8": {
        "weight": torch.zeros(2 * N, 8, dtype=torch.bfloat16)
    },
    "gate_up_weight: must have an even number of rows, has 47": {
        "weight": torch.zeros(2 * N - 1, K, dtype=torch.bfloat16)
    },
    "out: must have shape [5, 24], has [6, 24]": {
        "out": torch.zeros(M + 1, N, dtype=torch.bfloat16)
    },
    "out: must have shape [5, 24], has [5, 32]": {
        "out": torch.zeros(M, N + 8, dtype=torch.bfloat16)
    },
    "x, gate_up_weight: must not require gradients, there is none": {
        "weight": torch.zeros(2 * N, K, dtype=torch.bfloat16, requires_grad=True)
    },
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_what_the_library_cannot_see_is_checked_here(recorder, sentence):
    x, weight, out = tensors()
    given = {"x": x, "weight": weight, "out": out, **BROKEN[sentence]}
    with pytest.raises(InvalidArgument) as caught:
        check_tensors(given["x"], given["weight"], given["out"])
    assert str(caught.value) == sentence
    with pytest.raises(InvalidArgument):
        recorder(given["x"], given["weight"], given["out"])
    assert recorder.recorded("launches") == 0


def test_weights_that_require_gradients_are_fine_where_nobody_records_them(recorder):
    x, weight, out = tensors()
    with torch.no_grad():
        check_tensors(x, weight.requires_grad_(), out)


def test_the_quick_look_never_passes_what_the_check_refuses():
    choose = random.Random(0)
    shapes = [(M, K), (2 * N, K), (M, N), (1, K), (K,), (0, K), (M, 0), (2, M, K)]
    passed = refused = 0
    for _ in range(20_000):
        three = []
        for usual in ((M, K), (2 * N, K), (M, N)):
            shape = usual if choose.random() < 0.8 else choose.choice(shapes)
            dtype = torch.bfloat16 if choose.random() < 0.9 else torch.float16
            tensor = torch.empty(shape, dtype=dtype)
            three.append(tensor.mT if tensor.dim() == 2 and choose.random() < 0.05 else tensor)
        sound = _is_sound(*three)
        passed += sound
        try:
            check_tensors(*three)
        except InvalidArgument:
            refused += 1
            assert not sound
    assert passed > 1000
    assert refused > 1000


def test_a_tensor_on_the_cpu_is_refused(recorder):
    with pytest.raises(InvalidArgument, match=r"^x: must be on a CUDA device, is on cpu$"):
        recorder(*tensors())


def test_the_output_has_the_shape_of_the_product():
    x, weight, out = tensors(torch.float16)
    made = empty_output(x, weight)
    assert (made.shape, made.dtype) == (out.shape, out.dtype)
    with pytest.raises(InvalidArgument, match=r"^gate_up_weight: must have 2 dimensions"):
        empty_output(x, weight[0])
