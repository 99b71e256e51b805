"""gate_up on a GPU: right, compiled, captured, on the current stream, and untouched on refusals.

pytest -m gpu tests/kernels tests/bench tests/engine
"""

from __future__ import annotations

import pytest
import torch

from service.kernels import reference
from service.kernels.bound import BoundLauncher
from service.kernels.errors import InvalidArgument
from service.kernels.launcher import default_launcher
from service.kernels.library import KernelChoice
from service.kernels.ops import gate_up_op
from service.kernels.swiglu import gate_up

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

M, N, K = 300, 520, 456
POISON = -12352.0  # exact in bf16 and fp16
# A single rounding is half of this; the sums before it are FP32, off by far less.
ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def draw(rows: int, columns: int, dtype=torch.bfloat16, std: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda").mul_(std).to(dtype)


def problem(dtype=torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(M, K, dtype), draw(2 * N, K, dtype, std=0.05)


def assert_right(out, x, weight, activation="silu", roundings=1) -> None:
    """Each element within a rounding of FP64, and 2^-19 of the sum of magnitudes before it.

    Kernel-1 rounds the activated gate as well.
    """
    exact = reference.gated(x, weight, activation, torch.float64)
    size = x.double().abs() @ weight.double().abs().T
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    act = reference.ACTIVATIONS[activation](gate)
    n = weight.shape[0] // 2
    slack = (1.2 * size[:, :n] * up.abs() + size[:, n:] * act.abs()) * 2**-19 + 2**-24
    excess = (out.double() - exact).abs() - 1.01 * roundings * ULP[out.dtype] * exact.abs() - slack
    assert excess.max() <= 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu"])
def test_every_dtype_and_activation(dtype, activation):
    x, weight = problem(dtype)
    out = gate_up(x, weight, activation)
    assert (out.shape, out.dtype, out.device) == ((M, N), dtype, x.device)
    assert_right(out, x, weight, activation)


@pytest.mark.parametrize("tokens", [1, 7, 64, 65, 129])
def test_few_tokens(tokens):
    x, weight = draw(tokens, K), draw(2 * N, K, std=0.05)
    assert_right(gate_up(x, weight), x, weight)


def test_every_kernel_can_be_chosen():
    x, weight = problem()
    for config in default_launcher().library.configs:
        if config.granularity == -1:
            continue
        for raster, swizzle in ((0, 0), (1, 2), (2, 8)):
            out = torch.full((M, N), POISON, dtype=x.dtype, device="cuda")
            choice = KernelChoice(config.id, raster, swizzle)
            for constant in (False, True):
                out.fill_(POISON)
                gate_up(x, weight, out=out, choice=choice, weights_constant=constant)
                assert_right(out, x, weight, roundings=3 - config.kernel)


def test_rows_apart_and_nothing_written_between_them():
    x = torch.full((M, K + 24), float("nan"), device="cuda").bfloat16()[:, 8 : 8 + K]
    weight = torch.full((2 * N, K + 8), float("nan"), device="cuda").bfloat16()[:, :K]
    x.copy_(draw(M, K))
    weight.copy_(draw(2 * N, K, std=0.05))
    frame = torch.full((M + 2, N + 16), POISON, dtype=x.dtype, device="cuda")
    out = frame[1 : M + 1, 8 : N + 8]
    assert gate_up(x, weight, out=out) is out
    assert_right(out, x, weight)
    out.fill_(POISON)
    assert bool((frame == POISON).all())


def test_no_tokens_and_no_hidden_size():
    x, weight = problem()
    assert gate_up(x[:0], weight).shape == (0, N)
    assert bool((gate_up(x[:, :0], weight[:, :0]) == 0).all())


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (lambda x, w, o: (x[:, :452], w[:, :452], o), r"^k: must be a multiple of 8, is 452"),
        (lambda x, w, o: (x, w[4:1036], o[:, :516]), r"^n: must be a multiple of 8, is 516"),
        (lambda x, w, o: (x[:, 4:452], w[:, :448], o), r"^x: must be aligned to 16 bytes"),
        (lambda x, w, o: (x[:, :448], w[:, 4:452], o), r"^gate_up: must be aligned to 16 bytes"),
        (lambda x, w, o: (x.cpu(), w, o), r"^gate_up_weight: must be on x's cpu, is on cuda:0"),
        (lambda x, w, o: (x, w.float(), o), r"^gate_up_weight: must be of x's torch.bfloat16"),
        (lambda x, w, o: (x[1:], w, o), r"^out: must have shape \[299, 520\], has \[300, 520\]"),
        (lambda x, w, o: (x[:1].expand(M, K), w, o), r"^x_row_stride: must be 456 to"),
    ],
)
def test_a_refusal_leaves_the_output_untouched(breaks, named):
    out = torch.full((M, N), POISON, dtype=torch.bfloat16, device="cuda")
    x, weight, broken_out = breaks(*problem(), out)
    with pytest.raises(InvalidArgument, match=named):
        gate_up(x, weight, out=broken_out)
    torch.cuda.synchronize()
    assert bool((out == POISON).all())


def test_an_option_out_of_range_is_refused():
    with pytest.raises(InvalidArgument, match=r"^config: must be -1 to"):
        gate_up(*problem(), choice=KernelChoice(config=10_000))


def test_it_runs_on_the_current_stream():
    x, weight = problem()
    expected = gate_up(x, weight)
    hold = torch.randn(8192, 8192, device="cuda")
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(32):
            hold @ hold
        late.copy_(x)  # only behind the products above is x what it should be
        out = gate_up(late, weight)
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, expected)


# torch's own compiler warns of torch's own past when it is first imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("given_output", [False, True])
def test_compiled_without_graph_breaks(given_output):
    @torch.compile(fullgraph=True)
    def model(x, weight, out):
        if given_output:
            gate_up(x * 2, weight, "silu", out=out)
        else:
            out = gate_up(x * 2, weight, "silu")
        return out + 1

    x, weight = problem()
    expected = gate_up(x * 2, weight) + 1
    out = torch.full((M, N), POISON, dtype=x.dtype, device="cuda")
    assert torch.equal(model(x, weight, out), expected)
    assert bool((out == POISON).all()) != given_output


def test_the_op_passes_torchs_own_checks():
    x, weight = problem()
    torch.library.opcheck(
        gate_up_op,
        (x, weight, "silu"),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )


def test_captured_and_replayed_with_other_inputs():
    x, weight = problem()
    gate_up(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gate_up(x, weight)
    for _ in range(3):
        x.copy_(draw(M, K))
        weight.copy_(draw(2 * N, K, std=0.05))
        out.fill_(POISON)
        graph.replay()
        assert_right(out, x, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bound_and_prepared_launches_give_the_same_bits(dtype):
    x, weight = problem(dtype)
    expected = gate_up(x, weight)
    bound = BoundLauncher(default_launcher(), weight, weights_constant=True)
    for rows in (M, 1, 0):
        out = torch.full((rows, N), POISON, dtype=dtype, device="cuda")
        bound(x[:rows], out)
        assert torch.equal(out, gate_up(x[:rows], weight))
    out = torch.full((M, N), POISON, dtype=dtype, device="cuda")
    prepared = bound.prepare(x, out)
    prepared(torch.cuda.current_stream().cuda_stream)
    assert torch.equal(out, expected)


def test_a_bound_launch_runs_on_the_current_stream():
    x, weight = problem()
    bound, out = BoundLauncher(default_launcher(), weight), torch.empty(M, N).bfloat16().cuda()
    later = torch.empty_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        later.copy_(x)
        bound(later, out)
    stream.synchronize()
    assert_right(out, x, weight)


def test_nothing_is_allocated_but_the_output():
    x, weight = problem()
    out = gate_up(x, weight)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    gate_up(x, weight, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    gate_up(x, weight)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1


def test_the_same_input_gives_the_same_bits():
    x, weight = problem()
    first = gate_up(x, weight)
    for _ in range(100):
        assert torch.equal(gate_up(x, weight), first)
