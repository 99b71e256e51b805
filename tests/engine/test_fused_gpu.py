"""The GPU engine on a Hopper GPU: right, overlapped, without allocations, and honest when it dies.

pytest -m gpu tests/engine
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from service.engine.base import Batch, Output
from service.engine.choose import read_library
from service.engine.create import bind_kernels, create_engine
from service.engine.cuda_device import CudaDevice
from service.engine.down import Down
from service.engine.fused import FusedEngine
from service.engine.weights import ResidentLayer, ResidentModel
from service.errors import EngineError
from service.kernels import reference
from service.kernels.dispatch_table import read_table
from service.kernels.down import DownLauncher
from service.kernels.errors import LibraryError
from service.kernels.gemm import Gemm
from service.kernels.library import default_library
from tests.checkpoints import mlp_tensors, write_checkpoint
from tests.engine.batches import answers, make_batch, make_model

HIDDEN, INTERMEDIATE = 1024, 2816
MAX_TOKENS = 4096


def _obstacle() -> str:
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU"
    if torch.cuda.get_device_capability() != (9, 0):
        return "needs a Hopper GPU"
    library = read_library()
    return str(library) if isinstance(library, LibraryError) else ""


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_obstacle()), reason=_obstacle() or "can run"),
]


def make_engine(dtype: torch.dtype = torch.bfloat16, activation: str = "silu") -> FusedEngine:
    model = make_model(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        layers=(0, 3),
        dtype=dtype,
        activation=activation,
        scale=0.02,
    )
    layers = {
        layer: ResidentLayer(weights.gate_up.cuda(), weights.down.cuda())
        for layer, weights in model.layers.items()
    }
    device = CudaDevice(torch.device("cuda", 0), default_library())
    gate_up = bind_kernels(model.spec, "table", device)
    down = Down(DownLauncher(default_library()), Gemm())
    engine = FusedEngine(ResidentModel(model.spec, layers), device, gate_up, down)
    engine.warm_up(MAX_TOKENS)
    return engine


@pytest.fixture(scope="module")
def engine() -> FusedEngine:
    return make_engine()


def draw(tokens: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 10_000 + tokens)
    return torch.randn(tokens, HIDDEN, generator=generator).to(dtype)


def assert_right(engine: FusedEngine, inputs: list[torch.Tensor], batch: Batch) -> None:
    """Within two roundings to the resident dtype of the row's largest value in FP64."""
    weights = engine._resident.layers[batch.layer]
    activation = engine.model.activation
    for rows, answer in zip(inputs, answers(batch), strict=True):
        x = rows.to(weights.gate_up.dtype).cuda()
        if batch.output is Output.GATED:
            exact = reference.gated(x, weights.gate_up, activation, torch.float64)
        else:
            exact = reference.mlp(x, weights.gate_up, weights.down, activation, torch.float64)
        scale = exact.abs().amax(dim=1, keepdim=True)
        bound = 2 * torch.finfo(weights.gate_up.dtype).eps * scale
        assert ((answer.cuda().double() - exact).abs() <= bound).all()


COUNTS = [(1,), (3, 1, 60), (64,), (65, 3), (128,), (129,), (1, 500, 2, 700), (4096,), (1,) * 200]


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("trips", [True, False], ids=["trips", "calls"])
def test_every_segment_gets_its_own_rows(
    engine: FusedEngine,
    monkeypatch: pytest.MonkeyPatch,
    output: Output,
    counts: tuple[int, ...],
    trips: bool,
) -> None:
    if not trips:
        monkeypatch.setattr(engine, "_trips", dict.fromkeys(Output, ()))
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    for layer in engine.model.layers:
        inputs = [draw(n, kinds[i % 3], seed=i) for i, n in enumerate(counts)]
        batch = make_batch(engine.model, inputs, layer=layer, output=output)
        report = engine.run(batch)
        assert_right(engine, inputs, batch)
        assert {name for name, _ in report.kernels} <= set(engine.kernels)
        # In a graph a timer may be late, as it is beside the kernels; their sum is not.
        assert all(0 <= seconds < 0.1 for _, seconds in report.kernels)
        assert 0 < report.busy_s == report.stages["compute"] < 0.1
        assert all(0 < report.stages[stage] < 0.2 for stage in ("h2d", "d2h"))
        assert report.kernel.split("/")[0] == report.kernels[0][0]


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("counts", [(1,), (3, 1, 12), (32,)], ids=str)
def test_a_launched_batch_needs_no_thread_and_gives_the_same_bits(
    engine: FusedEngine, output: Output, counts: tuple[int, ...]
) -> None:
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    inputs = [draw(n, kinds[i % 3], seed=i) for i, n in enumerate(counts)]
    launched_one, run_one = (
        make_batch(engine.model, inputs, layer=3, output=output) for _ in range(2)
    )
    launched = engine.launch(launched_one)
    assert launched is not None
    assert launched.spin(5.0)
    launched.finish()
    report = launched.report()
    assert_right(engine, inputs, launched_one)
    assert report.kernel == launched.kernel
    assert 0 < report.busy_s < 0.1
    assert all(0 <= seconds < 0.1 for _, seconds in report.kernels)
    engine.run(run_one)
    assert all(map(torch.equal, answers(launched_one), answers(run_one)))
    assert 0 < engine.expected_s(output, sum(counts)) < 0.1


@pytest.mark.parametrize(
    ("dtype", "activation"), [(torch.float16, "silu"), (torch.bfloat16, "gelu_tanh")]
)
def test_other_types_and_activations(dtype: torch.dtype, activation: str) -> None:
    engine = make_engine(dtype, activation)
    for tokens in (5, 700):
        batch = make_batch(engine.model, [draw(tokens, dtype)])
        engine.run(batch)
        assert_right(engine, [draw(tokens, dtype)], batch)


def in_lent_memory(engine: FusedEngine, batch: Batch) -> Batch:
    """The same batch with its inputs where the arena would have received them."""
    segments = []
    for segment in batch.segments:
        memory = memoryview(engine.allocate_host(segment.input.nbytes))
        memory[:] = segment.input
        segments.append(segment._replace(input=memory))
    return Batch(batch.layer, batch.output, segments)


def test_pinned_slots_are_copied_from_where_they_are(engine: FusedEngine) -> None:
    inputs = [draw(2), draw(300, seed=1), draw(64, seed=2), draw(700, seed=3)]
    batch = in_lent_memory(engine, make_batch(engine.model, inputs))
    assert torch.frombuffer(batch.segments[1].input, dtype=torch.uint8).is_pinned()
    engine.run(batch)
    assert_right(engine, inputs, batch)


def test_batches_from_many_threads_overlap_and_get_their_own_answers(engine: FusedEngine) -> None:
    sizes = [1, 700, 33, 2048, 5, 129, 64, 4000, 2, 300]
    jobs = []
    for index in range(60):
        inputs = [draw(sizes[index % 10], seed=index), draw(1 + index % 7, seed=99 + index)]
        inputs = [rows[: MAX_TOKENS - 8] for rows in inputs]
        output = Output.GATED if index % 5 == 4 else Output.MLP
        jobs.append(
            (inputs, make_batch(engine.model, inputs, layer=3 * (index % 2), output=output))
        )
    with ThreadPoolExecutor(engine.concurrency) as pool:
        list(pool.map(lambda job: engine.run(job[1]), jobs))
    for inputs, batch in jobs:
        assert_right(engine, inputs, batch)


def test_a_replayed_graph_gives_the_bits_of_the_calls_it_holds(
    engine: FusedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for output in Output:
        sizes = (*engine._buckets[output], *engine._trips[output])
        assert sizes[-1] > 256
        for size in sizes:
            batches = [
                make_batch(engine.model, [draw(size)], layer=3, output=output) for _ in range(2)
            ]
            engine.run(batches[0])
            with monkeypatch.context() as patch:
                for graphs in ("_buckets", "_trips"):
                    patch.setattr(engine, graphs, dict.fromkeys(Output, ()))
                engine.run(batches[1])
            assert torch.equal(*(answers(batch)[0] for batch in batches))


@pytest.mark.parametrize("graphs", ["_buckets", "_trips"])
def test_padding_changes_no_bit_of_the_rows_before_it(engine: FusedEngine, graphs: str) -> None:
    bucket = getattr(engine, graphs)[Output.MLP][-1]
    poison = make_batch(engine.model, [torch.full((bucket, HIDDEN), torch.inf)])
    whole = make_batch(engine.model, [draw(bucket)])
    engine.run(whole)
    for _ in range(engine.concurrency):
        engine.run(poison)
    part = make_batch(engine.model, [draw(bucket)[: bucket - 1]])
    engine.run(part)
    assert torch.equal(answers(part)[0], answers(whole)[0][: bucket - 1])


def collect(engine: FusedEngine, outcomes: list[object], count: int) -> None:
    """Until so many were told of."""
    while len(outcomes) < count:
        assert select.select(engine.descriptors, [], [], 20)[0], "nothing ended"
        engine.collect()


def test_started_batches_give_the_bits_of_those_that_are_run(engine: FusedEngine) -> None:
    for output in Output:
        for size in (*engine._buckets[output], *engine._trips[output]):
            tokens = size - size // 3
            parts = (
                [draw(tokens - tokens // 4), draw(tokens // 4)] if tokens > 3 else [draw(tokens)]
            )
            ran, *started = [
                make_batch(engine.model, parts, layer=3, output=output)
                for _ in range(1 + engine.concurrency)
            ]
            report = engine.run(ran)
            outcomes: list[object] = []
            for batch in started:
                assert engine.start(batch, outcomes.append)
            assert not engine.start(ran, outcomes.append), "there are no more slots"
            collect(engine, outcomes, len(started))
            for batch, outcome in zip(started, outcomes, strict=True):
                assert all(
                    torch.equal(*pair) for pair in zip(answers(batch), answers(ran), strict=True)
                )
                assert (outcome.kernel, [name for name, _ in outcome.kernels]) == (
                    report.kernel,
                    [name for name, _ in report.kernels],
                )
                assert 0 < outcome.busy_s < 1
                assert all(0 < seconds < 1 for seconds in outcome.stages.values())


def test_the_same_input_gives_the_same_bits(engine: FusedEngine) -> None:
    for tokens in (1, 100, 1000, 4096):
        first, second = (make_batch(engine.model, [draw(tokens)]) for _ in range(2))
        engine.run(first)
        engine.run(second)
        assert torch.equal(answers(first)[0], answers(second)[0])


def test_nothing_is_allocated_in_the_steady_state() -> None:
    engine = make_engine()
    sizes = (1, 7, 64, 128, 129, 1000, 4096)
    batches = [
        in_lent_memory(engine, make_batch(engine.model, [draw(n)], output=output))
        for n in sizes
        for output in Output
    ]

    def counters() -> tuple[int, int]:
        return (
            torch.cuda.memory_stats()["allocation.all.allocated"],
            torch.cuda.host_memory_stats()["num_host_alloc"],
        )

    before = counters()
    used = torch.cuda.mem_get_info()[0]
    ended = threading.Barrier(engine.concurrency)

    def work() -> None:
        for _ in range(20):
            for batch in batches:
                engine.run(batch)
        ended.wait()

    # Threads that are new to the engine, as the service's are after the warm-up.
    threads = [threading.Thread(target=work) for _ in range(engine.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started: list[object] = []
    for batch in batches * 5:
        if not engine.start(batch, started.append):
            collect(engine, started, len(started) + 1)
            assert engine.start(batch, started.append)
    collect(engine, started, 5 * len(batches))
    engine.self_test()
    assert counters() == before
    # Nor behind torch's back: cuBLAS, graphs, module loading.
    assert used - torch.cuda.mem_get_info()[0] <= 0


def test_a_batch_that_runs_out_of_memory_fails_alone(engine: FusedEngine, monkeypatch) -> None:
    with monkeypatch.context() as patch:

        def hog(x: torch.Tensor, *_: object) -> None:
            x.new_empty(1 << 40)

        # A graph runs no Python.
        patch.setattr(engine, "_trips", dict.fromkeys(Output, ()))
        patch.setattr(engine._passage.products.gate_up, "run", hog)
        with pytest.raises(EngineError, match=r"^batch of 4096 tokens: out of device memory$"):
            engine.run(make_batch(engine.model, [draw(4096)]))
    for tokens in (3, 500, 4096):
        batch = make_batch(engine.model, [draw(tokens)])
        engine.run(batch)
        assert_right(engine, [draw(tokens)], batch)
    engine.self_test()


def test_it_is_chosen_on_this_machine(tmp_path: Path) -> None:
    tensors = mlp_tensors(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, layers=2, scale=0.02)
    folder = write_checkpoint(tmp_path / "ckpt", tensors)
    engine, reason = create_engine(
        model=folder, preset="", model_name=None, layers=None, device="auto"
    )
    assert reason == f"backend fused on cuda:0: torch finds {torch.cuda.get_device_name()}"
    engine.warm_up(64)
    batch = make_batch(engine.model, [draw(5), draw(50)], layer=1)
    engine.run(batch)
    assert_right(engine, [draw(5), draw(50)], batch)
    engine.close()


def test_it_measures_for_a_checkpoint_once(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    tensors = mlp_tensors(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, layers=2, scale=0.02)
    folder = write_checkpoint(tmp_path / "ckpt", tensors)
    for said in ("tuned 64 tokens", "dispatch table read from"):
        caplog.clear()
        engine, _ = create_engine(
            model=folder,
            preset="",
            model_name=None,
            layers=None,
            device="auto",
            autotune=True,
            max_batch_tokens=64,
        )
        assert said in caplog.text
        engine.warm_up(64)
        batch = make_batch(engine.model, [draw(64)], layer=1)
        engine.run(batch)
        assert_right(engine, [draw(64)], batch)
        engine.close()
    (path,) = folder.glob("tilemlp-*.json")
    sizes = read_table(path)
    assert [size.tokens for size in sizes] == [1, 16, 64]
    assert all(0 < size.ranked[0].us < 1000 for size in sizes)


LOST = """
import time, torch
from tests.engine.test_fused_gpu import collect, draw, make_batch, make_engine
from service.errors import EngineDead
engine = make_engine()
torch._assert_async(torch.zeros(1, device="cuda"))
began = time.monotonic()
batch, outcomes = make_batch(engine.model, [draw({tokens})]), []
try:
    if {started}:
        assert engine.start(batch, outcomes.append)
        collect(engine, outcomes, 1)
        raise outcomes[0]
    engine.run(batch)
except EngineDead as error:
    print("dead", time.monotonic() - began, str(error).replace(chr(10), " "))
try:
    engine.self_test()
except EngineDead:
    print("dead again")
import os, sys
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("tokens", "started"), [(1, False), (1000, False), (1000, True)])
def test_a_lost_device_ends_the_engine_within_a_second(tokens: int, started: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST.format(tokens=tokens, started=started)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    assert lines[1] == "dead again"
    assert float(lines[0].split()[1]) < 1
    assert f"batch of {tokens} tokens: " in lines[0]
    assert "assert" in lines[0]
