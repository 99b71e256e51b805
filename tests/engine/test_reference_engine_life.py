"""The reference engine's warm-up, self-test, faults and end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NoReturn

import pytest
import torch

from service.engine import reference as engine_module
from service.engine.base import Output
from service.engine.reference import ReferenceEngine
from service.errors import EngineDead, EngineError
from tests.engine.batches import make_batch, make_model

CPU = torch.device("cpu")


@pytest.fixture
def engine() -> ReferenceEngine:
    return ReferenceEngine(make_model(), CPU)


def draw(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, 32, generator=torch.Generator().manual_seed(0))


def test_warm_up_makes_the_self_test_pass_and_allocates_for_the_largest_batch() -> None:
    engine = ReferenceEngine(make_model(), CPU)
    engine.warm_up(300)
    buffers = (engine._x, engine._intermediate, engine._answer)
    before = [buffer._flat.data_ptr() for buffer in buffers]
    for output in Output:
        engine.run(make_batch(engine.model, [draw(300)], output=output))
    assert [buffer._flat.data_ptr() for buffer in buffers] == before
    engine.self_test()


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("part", ["gate_up", "down"])
def test_self_test_names_a_layer_whose_weights_changed(layer: int, part: str) -> None:
    model = make_model()
    engine = ReferenceEngine(model, CPU)
    engine.warm_up(8)
    # Each call tests one layer; in a round of them, every layer has its turn.
    for _ in model.layers:
        engine.self_test()
    getattr(model.layers[layer], part)[3, 4] += 0.25
    for other in model.layers:
        if other == layer:
            with pytest.raises(
                EngineError, match=rf"^self-test: layer {layer} must be within .* is off by"
            ):
                engine.self_test()
        else:
            engine.self_test()


def test_warm_up_refuses_an_engine_that_computes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_bf16(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _: object) -> None:
        out.copy_(x.bfloat16() @ weight.T)

    monkeypatch.setattr(engine_module, "linear_into", as_bf16)
    with pytest.raises(EngineError, match=r"layer 0 must be within 0\.0001 of the known answer"):
        ReferenceEngine(make_model(), CPU).warm_up(8)


def test_self_test_compares_infinities_and_nan() -> None:
    model = make_model(layers=(0,))
    model.layers[0].gate_up[0, 0] = torch.inf
    engine = ReferenceEngine(model, CPU)
    engine.warm_up(4)
    engine.self_test()
    model.layers[0].gate_up[0, 0] = 0.5
    with pytest.raises(EngineError, match="is off by"):
        engine.self_test()


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*args: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            EngineError,
            "^batch of 2 tokens: out of device memory$",
        ),
        (
            torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nhint"),
            EngineDead,
            "^batch of 2 tokens: CUDA error: an illegal memory access was encountered$",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
            EngineDead,
            "CUBLAS_STATUS_EXECUTION_FAILED",
        ),
        (RuntimeError("shapes differ"), RuntimeError, "^shapes differ$"),
    ],
)
def test_faults_end_the_batch_or_the_engine(
    engine: ReferenceEngine,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception],
    message: str,
) -> None:
    batch = make_batch(engine.model, [draw(2)])
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "gated_into", raising(error))
        with pytest.raises(expected, match=message) as failure:
            engine.run(batch)
    assert failure.type is expected
    # The lock is free again.
    engine.run(batch)


def test_an_unknown_layer_fails_its_batch_alone(engine: ReferenceEngine) -> None:
    with pytest.raises(KeyError):
        engine.run(make_batch(engine.model, [draw(2)], layer=1))
    engine.run(make_batch(engine.model, [draw(2)]))


def test_a_self_test_waits_for_the_batch_before_it(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.warm_up(4)
    batch_runs, may_finish, order = threading.Event(), threading.Event(), []
    gated_into = engine_module.gated_into

    def slowly(*args: torch.Tensor) -> None:
        order.append(len(args[0]))
        batch_runs.set()
        assert may_finish.wait(10)
        gated_into(*args)

    monkeypatch.setattr(engine_module, "gated_into", slowly)
    with ThreadPoolExecutor(2) as pool:
        batch = pool.submit(engine.run, make_batch(engine.model, [draw(4)]))
        assert batch_runs.wait(10)
        self_test = pool.submit(engine.self_test)
        assert not wait([self_test], timeout=0.2).done
        assert order == [4]
        may_finish.set()
        batch.result(10)
        self_test.result(10)
    assert order == [4, 1]


def test_close_lets_go_of_the_weights(engine: ReferenceEngine) -> None:
    engine.warm_up(4)
    engine.close()
    assert not engine._resident.layers
    assert engine._answer._flat.numel() == 0
