"""From a batch size to a launch: the library's own choice, named, and passed on as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from service.engine import gate_up as gate_up_module
from service.engine.base import DType, ModelSpec
from service.engine.gate_up import GateUp
from service.errors import ConfigError
from service.kernels.abi import Raster
from service.kernels.dispatch_table import DispatchTable, Tuned, TunedSize
from service.kernels.launcher import WEIGHTS_CONSTANT
from service.kernels.library import KernelChoice, Library
from tests.kernels.conftest import host_library  # noqa: F401 - a fixture

MODEL = ModelSpec("m", 896, 4864, (0,), "silu", DType.BF16)


class FakeLauncher:
    def __init__(self, library: Library) -> None:
        self.library = library
        self.calls: list[tuple[object, ...]] = []

    def enqueue(self, *arguments: object) -> None:
        self.calls.append(arguments)


@pytest.fixture
def launcher(host_library: Library) -> FakeLauncher:  # noqa: F811
    return FakeLauncher(host_library)


@pytest.mark.parametrize("tokens", [1, 64, 300, 2048, 8192])
def test_what_is_launched_is_what_the_library_would_choose_and_what_is_said(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    monkeypatch.setattr(gate_up_module, "stream_of", lambda device: 7)
    gate_up = GateUp(launcher, MODEL, "table", 132)
    x, out = torch.empty(tokens, 896), torch.empty(tokens, 4864)
    weight = torch.empty(2, 2)
    gate_up.run(x, weight, out)
    choice = launcher.library.select(tokens, 4864, 896, 132)
    assert launcher.calls == [(x, weight, out, "silu", choice, WEIGHTS_CONSTANT, 7)]
    chosen = gate_up.choose(tokens)
    assert chosen.choice == choice
    config = launcher.library.configs[choice.config]
    assert chosen.family == f"kernel{config.kernel}"
    assert chosen.name == f"{chosen.family}/{config.name}"
    assert gate_up.choose(tokens) is chosen


def test_dtype_and_activation_reach_the_librarys_choice(
    launcher: FakeLauncher, monkeypatch
) -> None:
    asked = {}

    def select(*sizes: int, **types: int) -> KernelChoice:
        asked.update(types, sizes=sizes)
        return KernelChoice(0)

    monkeypatch.setattr(launcher.library, "select", select)
    model = replace(MODEL, dtype=DType.FP16, activation="relu")
    GateUp(launcher, model, "table", 99).choose(5)
    assert asked == {"dtype": 1, "activation": 2, "sizes": (5, 4864, 896, 99)}


def measured(library: Library) -> DispatchTable:
    """Kernel-1 is the fastest at 100 tokens and more."""
    ranked = (Tuned("k1_128x128_c2x1", "along_n", 8, 1.0), Tuned("pp_64x256_c1x1", "along_m", 1, 2))
    sizes = [TunedSize(896, 4864, 99, ranked[1:]), TunedSize(896, 4864, 8192, ranked)]
    return DispatchTable(sizes, library)


def test_what_was_measured_on_this_gpu_is_used(launcher: FakeLauncher) -> None:
    gate_up = GateUp(launcher, MODEL, "table", 132, measured(launcher.library))
    assert gate_up.choose(64).name == "kernel2/pp_64x256_c1x1"
    chosen = gate_up.choose(100)
    assert (chosen.name, chosen.family) == ("kernel1/k1_128x128_c2x1", "kernel1")
    assert (chosen.choice.raster, chosen.choice.swizzle) == (Raster.ALONG_N, 8)
    forced = GateUp(launcher, MODEL, "kernel2", 132, measured(launcher.library))
    assert forced.choose(100).name == "kernel2/pp_64x256_c1x1"


def test_measurements_with_other_types_say_nothing(launcher: FakeLauncher) -> None:
    model = replace(MODEL, activation="relu")
    gate_up = GateUp(launcher, model, "table", 132, measured(launcher.library))
    assert gate_up.choose(100).family == "kernel2"


def test_a_mode_without_kernels_is_refused_before_anything_is_loaded(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(config for config in launcher.library.configs if config.kernel == 2)
    monkeypatch.setattr(launcher.library, "configs", others)
    with pytest.raises(ConfigError, match=r"dispatch: .* has no Kernel-1, is 'paper'"):
        GateUp(launcher, MODEL, "paper", 132)


def test_what_runs_where_is_said_once_for_each_stretch(launcher: FakeLauncher) -> None:
    ranked = (
        Tuned("pp_64x256_c1x1", "along_m", 1, 1.0),
        Tuned("k1_64x256_c2x1", "along_m", 1, 2.0),
    )
    sizes = [TunedSize(896, 4864, 64, ranked), TunedSize(896, 4864, 8192, ranked[::-1])]
    table = DispatchTable(sizes, launcher.library)
    gate_up = GateUp(launcher, MODEL, "table", 132, table)
    assert gate_up.describe(300) == (
        "kernel2/pp_64x256_c1x1 up to 64 tokens, kernel1/k1_64x256_c2x1 up to 300 tokens"
    )
    assert gate_up.describe(1) == "kernel2/pp_64x256_c1x1 up to 1 tokens"
    assert gate_up.describe(128).endswith("k1_64x256_c2x1 up to 128 tokens")
