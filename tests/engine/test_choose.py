"""Which backend on which facts, with the reason; no GPU and no library needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from service.engine.base import DType, ModelSpec
from service.engine.choose import GpuFacts, Need, choose_backend, memory_need
from service.errors import ConfigError
from service.kernels.errors import LibraryError

MODEL = ModelSpec("m", 896, 4864, (0,), "silu", DType.BF16)
H200 = GpuFacts("NVIDIA H200", (9, 0), 140 << 30)
A100 = GpuFacts("NVIDIA A100", (8, 0), 80 << 30)
NEED = Need(fused=3 << 30, reference=2 << 30)
LIBRARY = SimpleNamespace(build_info="library=0.1 cuda=12.8", path=Path("libswiglu.so"))
NO_GPU_CODE = SimpleNamespace(build_info="library=0.1 cuda=none", path=Path("libswiglu.so"))
MISSING = LibraryError("kernel library: must be a or b, is neither; `make kernels` builds it")
OTHER_ABI = LibraryError("kernel library: ABI version must be 1, is 2 in a")
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def choose(
    setting: str = "auto",
    *,
    gpu: GpuFacts | None = H200,
    library: object = LIBRARY,
    model: ModelSpec = MODEL,
    auto_device: bool = True,
) -> tuple[str, str, str]:
    why = "torch finds no GPU" if gpu is None else f"torch finds {gpu.name}"
    plan = choose_backend(
        setting,
        CPU if gpu is None else CUDA,
        why,
        model,
        NEED,
        gpu=gpu,
        library=library,
        may_leave_gpu=auto_device,
    )
    return plan.backend, str(plan.device), plan.reason


FOUND = "torch finds NVIDIA H200"
# What is wrong, and how it is said.
OBSTACLES = [
    ({"gpu": A100}, "the fused kernels need sm_90, NVIDIA A100 is sm_80"),
    ({"library": MISSING}, str(MISSING)),
    ({"library": OTHER_ABI}, str(OTHER_ABI)),
    (
        {"library": NO_GPU_CODE},
        "kernel library: must have GPU code, libswiglu.so was built without",
    ),
    (
        {"model": replace(MODEL, dtype=DType.FP32)},
        "the fused kernels take weights of bf16 or fp16, these are of fp32",
    ),
    (
        {"model": replace(MODEL, hidden_size=900)},
        "the fused kernels need a multiple of 8 as hidden_size, it is 900",
    ),
    (
        {"model": replace(MODEL, intermediate_size=4866)},
        "the fused kernels need a multiple of 8 as intermediate_size, it is 4866",
    ),
    (
        {"gpu": replace(H200, free_bytes=5 << 29)},
        "3.0 GiB of device memory must be free for weights and buffers, 2.5 are",
    ),
]


@pytest.mark.parametrize("setting", ["auto", "fused"])
def test_a_hopper_gpu_with_a_library_is_used(setting: str) -> None:
    assert choose(setting) == ("fused", "cuda:0", FOUND)


@pytest.mark.parametrize(("facts", "obstacle"), OBSTACLES)
def test_what_is_in_the_way_is_said_and_torch_serves_on_the_gpu(facts, obstacle: str) -> None:
    name = facts.get("gpu", H200).name
    assert choose(**facts) == ("reference", "cuda:0", f"torch finds {name}, but {obstacle}")


@pytest.mark.parametrize(("facts", "obstacle"), OBSTACLES)
def test_who_insists_on_fused_is_refused(facts, obstacle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose("fused", **facts)
    assert str(caught.value) == (
        f"backend: must be auto or reference, since {obstacle}, is 'fused'"
    )


def test_without_a_gpu_torch_serves_on_the_cpu() -> None:
    assert choose(gpu=None) == ("reference", "cpu", "torch finds no GPU")
    assert choose("reference", gpu=None) == ("reference", "cpu", "torch finds no GPU")
    with pytest.raises(ConfigError, match=r"since the fused kernels need a GPU, is 'fused'$"):
        choose("fused", gpu=None)


def test_reference_can_be_asked_for() -> None:
    reason = f"{FOUND}, but the setting backend says reference"
    assert choose("reference") == ("reference", "cuda:0", reason)


def test_a_gpu_with_no_room_even_for_the_reference_is_left() -> None:
    full = replace(H200, free_bytes=1 << 30)
    reason = f"{FOUND}, but 2.0 GiB of device memory must be free for weights and buffers, 1.0 are"
    assert choose(gpu=full) == ("reference", "cpu", reason)
    # Not where the user named it: then loading fails, with what would be needed.
    assert choose(gpu=full, auto_device=False)[1] == "cuda:0"


def test_needed_memory_counts_weights_and_a_buffer_per_slot() -> None:
    one, two = memory_need(MODEL, 8192, 1), memory_need(MODEL, 8192, 2)
    weights = 3 * 896 * 4864 * 2
    row = (896 + 4864 + 896) * 2
    assert two.fused - one.fused == 8192 * row
    assert one.fused - 8192 * row - weights == 1 << 30
    eight = memory_need(replace(MODEL, layers=tuple(range(8))), 8192, 1)
    assert eight.fused - one.fused == eight.reference - one.reference == 7 * weights
    # FP32 input, answer as wide as gated, and a block of the intermediate.
    fp32 = 8192 * (896 + 4864) + 2048 * 4864
    assert one.reference - weights - 4 * fp32 == 1 << 30
