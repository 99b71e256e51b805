"""NVML gauges: base units, the right GPU, and gone where there is nothing to say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pynvml
import pytest

from service.config import Settings
from service.engine.base import Gpu
from service.metrics import GPU_GAUGES
from service.nvml import GpuSampler
from service.runtime import Runtime
from tests.engines import FakeEngine

ONE, TWO = Gpu(0, "GPU-b"), Gpu(1, "GPU-a")


class FakeNvml:
    """Two GPUs under load.

    Attributes:
        gate: Cleared, every reading blocks, as with a driver in trouble.
        refused: Readings that the GPUs do not support.
        broken: What every reading of power raises.
        opened: Calls of nvmlInit that nvmlShutdown has not undone.
    """

    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVMLError = pynvml.NVMLError

    def __init__(self, *, library: bool = True) -> None:
        self.library = library
        self.gate = threading.Event()
        self.gate.set()
        self.refused: set[str] = set()
        self.broken: Exception | None = None
        self.opened = 0
        self.attempts = self.rounds = 0
        self.ended = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.library:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1
        self.ended.set()

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        handles = {"GPU-a": 1, "GPU-b": 2}
        if uuid not in handles:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handles[uuid]

    def _answer(self, name: str, value: object) -> object:
        assert self.gate.wait(30)
        if name in self.refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> object:  # noqa: N802
        return self._answer("utilisation", SimpleNamespace(gpu=25 * handle, memory=99))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:  # noqa: N802
        return self._answer("memory", SimpleNamespace(used=handle << 30, free=7, total=8))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> object:  # noqa: N802
        self.attempts += 1
        if self.broken is not None:
            raise self.broken
        return self._answer("power", 350_500 * handle)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> object:  # noqa: N802
        self.rounds += handle == 1
        return self._answer("clock", 1980 if kind == pynvml.NVML_CLOCK_SM else 1)


@contextmanager
def sampling(gpus: tuple[Gpu, ...], nvml: FakeNvml, **options: object) -> Iterator[GpuSampler]:
    sampler = GpuSampler(gpus, nvml, interval_s=0.01, **options)
    sampler.start()
    try:
        yield sampler
    finally:
        nvml.gate.set()
        sampler.stop()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_gpu_is_found_by_its_uuid_and_read_in_base_units() -> None:
    with sampling((ONE, TWO), FakeNvml()) as sampler:
        wait_for(sampler.readings)
        assert sampler.readings() == {
            "0": {
                "mlp_gpu_utilization_ratio": 0.5,
                "mlp_gpu_memory_used_bytes": 2 << 30,
                "mlp_gpu_power_watts": 701.0,
                "mlp_gpu_sm_clock_hertz": 1.98e9,
            },
            "1": {
                "mlp_gpu_utilization_ratio": 0.25,
                "mlp_gpu_memory_used_bytes": 1 << 30,
                "mlp_gpu_power_watts": 350.5,
                "mlp_gpu_sm_clock_hertz": 1.98e9,
            },
        }
        assert set(sampler.readings()["0"]) == set(GPU_GAUGES)


def test_what_a_gpu_does_not_support_is_left_out_alone() -> None:
    nvml = FakeNvml()
    nvml.refused = {"utilisation"}
    with sampling((ONE,), nvml) as sampler:
        wait_for(sampler.readings)
        assert set(sampler.readings()["0"]) == set(GPU_GAUGES) - {"mlp_gpu_utilization_ratio"}


def test_a_driver_that_hangs_blocks_nobody_and_is_not_believed_for_long() -> None:
    nvml, now = FakeNvml(), [0.0]
    with sampling((ONE,), nvml, clock=lambda: now[0]) as sampler:
        wait_for(sampler.readings)
        nvml.gate.clear()
        time.sleep(0.05)
        now[0] = 4.9
        assert sampler.readings()
        now[0] = 5.1
        assert sampler.readings() == {}
        nvml.gate.set()
        wait_for(sampler.readings)


def test_no_library_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with sampling((ONE,), FakeNvml(library=False)) as sampler:
        wait_for(lambda: caplog.messages)
        assert sampler.readings() == {}
    (message,) = caplog.messages
    assert "Library Not Found" in message


def test_a_gpu_that_nvml_does_not_know_is_said_and_nvml_let_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml = FakeNvml()
    with sampling((ONE, Gpu(1, "GPU-c")), nvml) as sampler:
        assert nvml.ended.wait(10)
        wait_for(lambda: caplog.messages)
        assert sampler.readings() == {}
    (message,) = caplog.messages
    assert "Not Found" in message
    assert nvml.opened == 0


def test_an_error_that_is_not_nvmls_is_said_once_and_reading_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml, now = FakeNvml(), [0.0]
    with sampling((ONE,), nvml, clock=lambda: now[0]) as sampler:
        wait_for(sampler.readings)
        nvml.broken = TypeError("an int is no pointer")
        before = nvml.attempts
        wait_for(lambda: nvml.attempts > before + 3)
        now[0] = 5.1
        assert sampler.readings() == {}
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert "TypeError('an int is no pointer')" in record.getMessage()
        nvml.broken = None
        wait_for(sampler.readings)
    assert nvml.ended.wait(10)
    assert nvml.opened == 0


def test_an_error_that_is_not_nvmls_at_the_start_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml()

    def refuse(uuid: str) -> int:
        raise OSError(f"no memory for {uuid}")

    with monkeypatch.context() as patch:
        patch.setattr(nvml, "nvmlDeviceGetHandleByUUID", refuse)
        with sampling((ONE,), nvml) as sampler:
            wait_for(lambda: caplog.messages)
            patch.undo()
            wait_for(sampler.readings)
            assert nvml.opened == 1
    assert "no memory for GPU-b" in caplog.text


def test_old_values_are_at_no_moment_shown_as_fresh() -> None:
    nvml, now, shown = FakeNvml(), [0.0], []

    class Watched(GpuSampler):
        """Scrapes after every single assignment."""

        watched = False

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if self.watched:
                shown.append(self.readings())

    sampler = Watched((ONE,), nvml, interval_s=0.01, clock=lambda: now[0])
    sampler.start()
    try:
        wait_for(sampler.readings)
        nvml.gate.clear()
        time.sleep(0.05)
        now[0] = 100.0
        nvml.refused = {"power", "memory", "clock"}
        sampler.watched = True
        nvml.gate.set()
        wait_for(lambda: len(shown) > 3)
    finally:
        sampler.stop()
    assert all("mlp_gpu_sm_clock_hertz" not in one.get("0", {}) for one in shown)


def test_it_reads_on_until_it_is_stopped() -> None:
    nvml = FakeNvml()
    with sampling((ONE, TWO), nvml):
        wait_for(lambda: nvml.rounds > 2)
        assert not nvml.ended.is_set()
    assert nvml.ended.wait(10)


def test_without_a_gpu_there_are_no_gauges_and_no_thread() -> None:
    nvml = FakeNvml(library=False)
    with sampling((), nvml) as sampler:
        assert sampler.readings() == {}
        assert "nvml" not in {thread.name for thread in threading.enumerate()}
    metrics = Runtime(Settings(), FakeEngine()).metrics
    assert not any(name in metrics.render().decode() for name in GPU_GAUGES)


def test_a_scrape_shows_them_by_gpu() -> None:
    metrics = Runtime(Settings(), FakeEngine()).metrics
    metrics.gpus(lambda: {"0": {"mlp_gpu_power_watts": 701.0}, "1": {"mlp_gpu_power_watts": 70.0}})
    read = metrics.registry.get_sample_value
    assert read("mlp_gpu_power_watts", {"gpu": "0"}) == 701.0
    assert read("mlp_gpu_power_watts", {"gpu": "1"}) == 70.0
    assert "mlp_gpu_sm_clock_hertz" not in metrics.render().decode()
    assert ("mlp_gpu_power_watts{gpu}", "gauge", GPU_GAUGES["mlp_gpu_power_watts"]) in (
        metrics.catalogue()
    )


def test_the_runtime_samples_the_engines_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.gpus = (ONE,)
    seen = []
    monkeypatch.setattr("service.runtime.GpuSampler", lambda gpus: seen.append(gpus) or Silent())
    Runtime(Settings(), engine)
    assert seen == [(ONE,)]


class Silent:
    def readings(self) -> dict[str, dict[str, float]]:
        return {}
