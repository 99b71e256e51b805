"""From settings to an engine: what is chosen, why, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from service.engine import create, plan
from service.engine.base import DType, ModelSpec
from service.engine.choose import GpuFacts, Plan
from service.engine.create import create_engine, shipped_table
from service.engine.down import Down
from service.engine.fused import SLOTS
from service.engine.peaks import peak_flops
from service.engine.plan import plan_engine, select_device
from service.engine.replicas import ReplicatedEngine
from service.errors import ConfigError
from service.kernels.dispatch_table import Tuned, TunedSize, write_table
from service.kernels.launcher import Launcher
from service.kernels.library import Library
from tests.checkpoints import mlp_tensors, write_checkpoint
from tests.kernels.conftest import host_library  # noqa: F401 - a fixture

H200 = "NVIDIA H200"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: H200)


@pytest.mark.usefixtures("no_gpu")
def test_serves_a_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt", mlp_tensors(layers=3))
    engine, reason = create_engine(
        model=tmp_path / "ckpt",
        preset="qwen2.5-0.5b",
        model_name=None,
        layers=(1, 2),
        device="auto",
    )
    assert (engine.model.name, engine.model.layers) == ("ckpt", (1, 2))
    assert reason == "backend reference on cpu: torch finds no GPU"


@pytest.mark.usefixtures("no_gpu")
def test_serves_a_preset_without_a_checkpoint() -> None:
    engine, reason = create_engine(
        model=None, preset="qwen2.5-0.5b", model_name="mine", layers=None, device="cpu"
    )
    assert (engine.model.name, engine.model.layers) == ("mine", (0,))
    assert reason == "backend reference on cpu: the setting device says so"


@pytest.mark.usefixtures("no_gpu")
def test_refuses_the_fused_backend_where_there_is_no_gpu() -> None:
    with pytest.raises(ConfigError, match=r"^backend: .* since the fused kernels need a GPU, is"):
        create_engine(
            model=None,
            preset="qwen2.5-0.5b",
            model_name=None,
            layers=None,
            device="auto",
            backend="fused",
        )


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("text", "device", "reason"),
    [
        ("auto", "cuda:0", f"torch finds {H200}"),
        ("cuda", "cuda:0", "the setting device says so"),
        ("cuda:1", "cuda:1", "the setting device says so"),
        ("cpu", "cpu", "the setting device says so"),
    ],
)
def test_selects_a_gpu(text: str, device: str, reason: str) -> None:
    assert select_device(text) == (torch.device(device), reason)


@pytest.mark.usefixtures("two_gpus")
def test_refuses_a_gpu_beyond_the_last() -> None:
    with pytest.raises(ConfigError, match=r"^device: must be one of the 2 GPUs .*, is 'cuda:2'$"):
        select_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
def test_refuses_a_gpu_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^device: must be one of the 0 GPUs .*, is 'cuda'$"):
        select_device("cuda")


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        (H200, DType.BF16, 989.5e12),
        ("NVIDIA H100 80GB HBM3", DType.FP16, 989.5e12),
        ("NVIDIA H100 PCIe", DType.BF16, 756e12),
        ("NVIDIA H200 NVL", DType.BF16, 835.5e12),
        (H200, DType.FP32, 67e12),
        ("NVIDIA GeForce GTX 1080", DType.BF16, None),
    ],
)
def test_peaks_are_the_dense_ones(name: str, dtype: DType, expected: float | None) -> None:
    assert peak_flops(name, dtype) == expected


RANKED = (Tuned("pp_64x256_c1x1", "along_m", 1, 1.0), Tuned("k1_64x256_c2x1", "along_m", 1, 2.0))


def test_a_table_is_for_the_card_it_was_measured_on(host_library: Library, tmp_path: Path) -> None:  # noqa: F811
    about = {"gpu": H200, "multiprocessors": 132}
    write_table(tmp_path / "h200.json", about, [TunedSize(896, 4864, 64, RANKED)])
    table = shipped_table(host_library, H200, 132, tmp_path)
    assert table is not None
    assert table.best(64, 4864, 896) is not None
    assert shipped_table(host_library, "NVIDIA H200 NVL", 132, tmp_path) is None
    assert shipped_table(host_library, H200, 16, tmp_path) is None
    assert shipped_table(host_library, "NVIDIA H100 80GB HBM3", 132, tmp_path) is None


def test_a_table_of_another_library_is_warned_of_and_left_alone(
    host_library: Library,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = TunedSize(896, 4864, 64, (Tuned("pp_1x1", "along_m", 1, 1.0),))
    write_table(tmp_path / "h200.json", {"gpu": H200, "multiprocessors": 132}, [gone])
    assert shipped_table(host_library, H200, 132, tmp_path) is None
    assert "names pp_1x1; `make kernels`" in caplog.text


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("options", [{"autotune": True}, {"dispatch": "kernel1"}])
def test_what_is_of_no_use_here_is_said(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    create_engine(**PRESET, device="cpu", **options)
    assert "are for the fused kernels, which do not run here" in caplog.text


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch, host_library: Library) -> list[str]:  # noqa: F811
    """A machine where the fused kernels run, so far as planning goes; returns what was called."""
    called: list[str] = []

    class Engine:
        concurrency = 3

        def __init__(
            self, resident: object, gpu: object, gate_up: str, down: Down, *, threads: int
        ) -> None:
            assert isinstance(down, Down)
            called.append(f"{gate_up} on {gpu} for {threads} threads")

    class Bound(str):
        def describe(self, tokens: int) -> str:
            return f"{self} up to {tokens}"

    def load(source: Any, *, device: torch.device, progress: Any) -> str:
        called.append("weights")
        if progress is not None:
            progress(1, 1)
        return "weights"

    def choose(_: object, device: torch.device, *__: object, **___: object) -> Plan:
        return Plan("fused", device, "a test says so")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: H200)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(plan, "read_gpu", lambda _: GpuFacts(H200, (9, 0), 1 << 40))
    monkeypatch.setattr(plan, "read_library", lambda: host_library)
    monkeypatch.setattr(plan, "choose_backend", choose)
    monkeypatch.setattr(create, "default_launcher", lambda: Launcher(host_library))
    monkeypatch.setattr(create, "CudaDevice", lambda device, _: device)
    monkeypatch.setattr(create, "bind_kernels", lambda *_: Bound("shipped table"))
    monkeypatch.setattr(create, "tune_kernels", lambda *_: Bound("own table"))
    monkeypatch.setattr(create, "load_model", load)
    monkeypatch.setattr(create, "FusedEngine", Engine)
    monkeypatch.setattr(create, "Gemm", lambda: None)
    return called


PRESET: dict[str, Any] = {
    "model": None,
    "preset": "qwen2.5-0.5b",
    "model_name": None,
    "layers": None,
}


@pytest.mark.parametrize(("autotune", "table"), [(False, "shipped table"), (True, "own table")])
def test_autotune_gives_the_engine_a_table_of_its_own(
    fused: list[str], autotune: bool, table: str
) -> None:
    create_engine(**PRESET, device="auto", autotune=autotune)
    assert fused == ["weights", f"{table} on cuda:0 for {SLOTS} threads"]


def test_each_of_several_gpus_gets_a_replica(fused: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    engine, said = create_engine(
        **PRESET, device="auto", devices=(1, 0), progress=lambda *of: seen.append(of)
    )
    assert fused == [
        "weights",
        f"shipped table on cuda:1 for {2 * SLOTS} threads",
        "weights",
        f"shipped table on cuda:0 for {2 * SLOTS} threads",
    ]
    assert isinstance(engine, ReplicatedEngine)
    assert engine.concurrency == 6
    assert seen == [(1, 2), (2, 2)]
    assert said == "backend fused on cuda:1, cuda:0: a test says so"


def test_one_gpu_of_several_needs_no_replicas(fused: list[str]) -> None:
    engine, said = create_engine(**PRESET, device="auto", devices=(1,))
    assert not isinstance(engine, ReplicatedEngine)
    assert said == "backend fused on cuda:1: a test says so"


def test_gpus_that_are_not_there_are_refused_before_weights_are_read(fused: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^devices: must be below 2, the .*, is '0,2'$"):
        create_engine(**PRESET, device="auto", devices=(0, 2))
    assert fused == []


def test_replicas_and_one_device_are_not_both_given(fused: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^devices: .* which is 'cuda:1', is '0,1'$"):
        create_engine(**PRESET, device="cuda:1", devices=(0, 1))
    assert fused == []


@pytest.mark.usefixtures("no_gpu")
def test_replicas_need_gpus() -> None:
    with pytest.raises(ConfigError, match=r"^devices: must be below 0, the number of GPUs that"):
        create_engine(**PRESET, device="auto", devices=(0, 1))


def test_replicas_of_several_kinds_are_refused(fused: list[str], monkeypatch) -> None:
    def choose(_: object, device: torch.device, *__: object, **___: object) -> Plan:
        if device.index:
            return Plan("reference", device, "it is too full")
        return Plan("fused", device, "a test says so")

    monkeypatch.setattr(plan, "choose_backend", choose)
    sentence = r"^devices: must all be .* same backend, are not: .*cuda:1: it is too full$"
    with pytest.raises(ConfigError, match=sentence):
        create_engine(**PRESET, device="auto", devices=(0, 1))
    assert fused == []


def test_the_log_says_how_fast_weights_came(fused: list[str], caplog) -> None:
    with caplog.at_level("INFO"):
        create_engine(**PRESET, device="auto")
    # 3 x 896 x 4864 elements of 2 bytes.
    assert "1 layers, 0.03 GB, resident on cuda:0 in" in caplog.text
    assert "GB/s" in caplog.text


def test_a_model_without_alternatives_is_refused_before_its_weights_are_read(
    fused: list[str],
) -> None:
    model = ModelSpec("gemma", 64, 128, (0,), "gelu_tanh", DType.BF16)
    plan_engine(model, "auto", "auto", "table", 64)
    with pytest.raises(ConfigError, match=r"^autotune: must be off .* bf16 with gelu_tanh$"):
        plan_engine(model, "auto", "auto", "table", 64, autotune=True)
    assert fused == []
