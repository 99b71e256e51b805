"""`tilemlp bench kernels --tune`: the fastest kernel, order and grouping of tiles at every size.

The sweep narrows down: all instances at a glance, then all orders of the best few at a glance, then
the best of those in the steady state, the best of each kernel and what is chosen now among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu, gpu_slug
from service.bench.kernel_options import KernelBenchOptions, Progress, require_gpu
from service.bench.kernel_problem import Problem, Size, draw_problems
from service.bench.kernel_variants import candidates, make_calls, make_fused_calls
from service.bench.kernels import PACKAGES
from service.bench.timing import CapturedCalls, Steadiness, Timing, Visitable, measure
from service.kernels.abi import Raster
from service.kernels.dispatch_table import Tuned, TunedSize, write_table
from service.kernels.launcher import Launcher, default_launcher
from service.kernels.library import KernelChoice, KernelConfig

ORDERS = (
    *((Raster.ALONG_M, swizzle) for swizzle in (1, 2, 4, 6, 8, 12)),
    *((Raster.ALONG_N, swizzle) for swizzle in (1, 4, 8)),
)
_GLANCE = Steadiness(settle_s=0.015, measure_s=0.03, rounds=1)
_INSTANCES_KEPT = 3
_CHOICES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Found:
    """One size after its sweep."""

    size: Size
    tuned: TunedSize
    gemm_us: float
    now_us: float


def run_tune(options: KernelBenchOptions, progress: Progress) -> list[str]:
    """Sweep every size, write the GPU's table after each, and return lines to print.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu()
    launcher = default_launcher()
    gpu = describe_gpu()
    about: dict[str, object] = {
        **describe_environment(options.command, PACKAGES, options.commit),
        **gpu,
        "library": launcher.library.build_info,
        "steadiness": asdict(options.steadiness),
    }
    path = options.table_path(gpu_slug(str(gpu["gpu"])))
    found: list[Found] = []
    num_sms = int(str(gpu["multiprocessors"]))
    began, sizes = time.monotonic(), options.sizes
    for index, problem in enumerate(draw_problems(sizes)):
        if time.monotonic() - began > options.budget_s:
            break
        progress(index, len(sizes), f"{problem.size.model}, {problem.size.tokens} tokens")
        found.append(_Sweep(launcher, num_sms, problem, options.steadiness).run())
        write_table(path, about, [entry.tuned for entry in found])
    return [_line(entry) for entry in found]


class _Sweep:
    """The search at one size."""

    def __init__(
        self, launcher: Launcher, num_sms: int, problem: Problem, steadiness: Steadiness
    ) -> None:
        self._launcher = launcher
        self._num_sms = num_sms
        self._problem = problem
        self._steadiness = steadiness

    def run(self) -> Found:
        size = self._problem.size
        now = self._chosen_now(size)
        finalists = {now, *self._finalists()}
        timings = self._measure(finalists)
        us = {choice: timings[self._name(choice)].us for choice in finalists}
        ranked = tuple(self._tuned(choice, us[choice]) for choice in sorted(us, key=us.__getitem__))
        tuned = TunedSize(size.hidden, size.intermediate, size.tokens, ranked)
        return Found(size, tuned, timings["gemm"].us, us[now])

    def _finalists(self) -> list[KernelChoice]:
        """The best few choices, and the best of each kernel."""
        instances = self._by_time([KernelChoice(config.id) for config in self._candidates()])
        kept = _with_each_kernel(instances, _INSTANCES_KEPT, self._kernel)
        orders = [
            KernelChoice(choice.config, raster, swizzle)
            for choice in kept
            for raster, swizzle in self._orders(choice)
        ]
        return _with_each_kernel(self._by_time(orders), _CHOICES_KEPT, self._kernel)

    def _candidates(self) -> list[KernelConfig]:
        return candidates(self._launcher.library)

    def _kernel(self, choice: KernelChoice) -> int:
        return self._launcher.library.configs[choice.config].kernel

    def _orders(self, choice: KernelChoice) -> Sequence[tuple[Raster, int]]:
        """Of a single row of tiles there is one."""
        config = self._launcher.library.configs[choice.config]
        return ORDERS if self._problem.size.tokens > config.tile_m else ORDERS[:1]

    def _by_time(self, choices: Sequence[KernelChoice]) -> list[KernelChoice]:
        captured = {self._name(choice): self._capture(choice) for choice in choices}
        glances = measure(captured, _GLANCE)
        return sorted(choices, key=lambda choice: glances[self._name(choice)].us)

    def _measure(self, choices: set[KernelChoice]) -> dict[str, Timing]:
        captured: dict[str, Visitable] = {
            self._name(choice): self._capture(choice) for choice in choices
        }
        gemm = CapturedCalls(make_calls("gemm", self._problem))
        steadiness = self._steadiness.for_tokens(self._problem.size.tokens)
        return measure({**captured, "gemm": gemm}, steadiness)

    def _capture(self, choice: KernelChoice) -> CapturedCalls:
        return CapturedCalls(make_fused_calls(self._launcher, self._problem, choice))

    def _chosen_now(self, size: Size) -> KernelChoice:
        library = self._launcher.library
        return library.select(size.tokens, size.intermediate, size.hidden, self._num_sms)

    def _tuned(self, choice: KernelChoice, us: float) -> Tuned:
        config = self._launcher.library.configs[choice.config].name
        return Tuned(config, Raster(choice.raster).name.lower(), choice.swizzle, round(us, 2))

    def _name(self, choice: KernelChoice) -> str:
        config = self._launcher.library.configs[choice.config].name
        return f"{config} {Raster(choice.raster).name.lower()} {choice.swizzle}"


def _with_each_kernel(
    ranked: Sequence[KernelChoice], count: int, kernel: Callable[[KernelChoice], int]
) -> list[KernelChoice]:
    """The first `count`, and the first of every kernel that is not among them."""
    kept = list(ranked[:count])
    for choice in ranked[count:]:
        if all(kernel(other) != kernel(choice) for other in kept):
            kept.append(choice)
    return kept


def _line(found: Found) -> str:
    best = found.tuned.ranked[0]
    others = ", ".join(
        f"{tuned.config} {tuned.raster} {tuned.swizzle} {tuned.us / found.gemm_us:.3f}"
        for tuned in found.tuned.ranked[1:]
    )
    return (
        f"{found.size.model:13} {found.size.tokens:6}  {best.config:16} {best.raster:8} "
        f"{best.swizzle:2} {best.us:9.1f} µs, {best.us / found.gemm_us:.3f} of the GEMM; before "
        f"{found.now_us / found.gemm_us:.3f}; {others}"
    )
