"""What NVML says of the GPUs: the only user of nvidia-ml-py."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml

from service.engine.base import Gpu

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
# So old a reading is not shown: a driver that hangs must not look like a GPU that idles.
_STALE_AFTER_S = 5.0

# By the names of metrics.GPU_GAUGES, in base units.
_READERS: Mapping[str, Callable[[Any, Any], float]] = {
    "mlp_gpu_utilization_ratio": lambda nvml, gpu: (
        nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    ),
    "mlp_gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "mlp_gpu_power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "mlp_gpu_sm_clock_hertz": lambda nvml, gpu: (
        nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6
    ),
}


class GpuSampler:
    """Reads GPUs once a second in a thread of its own.

    A call into the driver takes milliseconds, and seconds where the driver is in trouble: neither
    the event loop nor a scrape may wait for it.

    Args:
        gpus: Which to read.
        nvml: The module that does it.
        interval_s: Seconds between two readings.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        nvml: Any = pynvml,  # noqa: ANN401 - nvidia-ml-py has no types
        *,
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = tuple(gpus)
        self._nvml = nvml
        self._interval_s = interval_s
        self._clock = clock
        # When, and what: in one piece, or a scrape between the two took old values for fresh.
        self._last: tuple[float, Mapping[str, Mapping[str, float]]] = (0.0, {})
        self._reported = ""
        self._ending = threading.Event()

    def start(self) -> None:
        """Begin; without a GPU nothing is done."""
        if self._gpus:
            threading.Thread(target=self._sample, name="nvml", daemon=True).start()

    def stop(self) -> None:
        """Read no more; does not wait for a reading that is under way."""
        self._ending.set()

    def readings(self) -> Mapping[str, Mapping[str, float]]:
        """The last values by GPU index and gauge; what could not be read lately is left out."""
        read_at, found = self._last
        return found if self._clock() - read_at < _STALE_AFTER_S else {}

    def _sample(self) -> None:
        handles: Mapping[int, object] | None = None
        while not self._ending.is_set():
            try:
                if handles is None:
                    handles = self._open()
                found = {str(index): self._read(handle) for index, handle in handles.items()}
                self._last = (self._clock(), found)
            except self._nvml.NVMLError as error:
                logger.warning("no mlp_gpu_… gauges from NVML: %s", error)
                return
            except Exception as error:  # noqa: BLE001 - said, and seen: the gauges go stale
                self._report(error)
            self._ending.wait(self._interval_s)
        if handles is not None:
            self._nvml.nvmlShutdown()

    def _report(self, error: Exception) -> None:
        """Log what NVML should never raise; not each second anew."""
        reason = repr(error)
        if reason != self._reported:
            self._reported = reason
            logger.error("GPUs not read, trying again every %g s: %s", self._interval_s, reason)

    def _open(self) -> Mapping[int, object]:
        """Load NVML and find the GPUs; where one is missing, let go of NVML again."""
        self._nvml.nvmlInit()
        try:
            return {gpu.index: self._find(gpu) for gpu in self._gpus}
        except BaseException:
            self._nvml.nvmlShutdown()
            raise

    def _find(self, gpu: Gpu) -> object:
        # By UUID, because NVML counts GPUs that CUDA_VISIBLE_DEVICES hides, and in another order.
        return self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)

    def _read(self, handle: object) -> Mapping[str, float]:
        found = {}
        for name, read in _READERS.items():
            try:
                found[name] = float(read(self._nvml, handle))
            except self._nvml.NVMLError:  # noqa: PERF203 - each may fail alone
                # Not every GPU has every gauge: a vGPU has no power.
                continue
        return found
