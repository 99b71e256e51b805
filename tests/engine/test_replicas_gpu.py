"""Replicas on two Hopper GPUs: right answers from both, whichever thread asks.

pytest -m gpu tests/engine
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
import torch

from service.engine.base import Output
from service.engine.create import create_engine
from service.engine.replicas import ReplicatedEngine
from service.engine.weights import load_model
from service.kernels import reference
from tests.engine.batches import answers, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
]

SIZES = (1, 7, 64, 300, 2048)


def test_every_thread_gets_right_answers_from_whichever_gpu() -> None:
    engine, said = create_engine(
        model=None,
        preset="qwen2.5-0.5b",
        model_name=None,
        layers=None,
        device="auto",
        devices=(0, 1),
        backend="fused",
    )
    assert isinstance(engine, ReplicatedEngine)
    assert said.startswith("backend fused on cuda:0, cuda:1: ")
    assert [gpu.index for gpu in engine.gpus] == [0, 1]
    engine.warm_up(max(SIZES))
    weights = load_model("qwen2.5-0.5b", device=torch.device("cuda", 0)).layers[0]
    together = threading.Barrier(engine.concurrency)

    def work(seed: int) -> None:
        together.wait()
        generator = torch.Generator().manual_seed(seed)
        for _, tokens in zip(range(30), cycle(SIZES[seed % 5 :] + SIZES), strict=False):
            x = torch.randn(tokens, 896, generator=generator).bfloat16()
            batch = make_batch(engine.model, [x], output=Output.MLP)
            engine.run(batch)
            exact = reference.mlp(x.cuda(0), weights.gate_up, weights.down, "silu", torch.float64)
            bound = 2 * torch.finfo(torch.bfloat16).eps * exact.abs().amax(dim=1, keepdim=True)
            assert ((answers(batch)[0].cuda(0).double() - exact).abs() <= bound).all()

    with ThreadPoolExecutor(engine.concurrency) as pool:
        list(pool.map(work, range(engine.concurrency)))
    engine.self_test()
    engine.close()
