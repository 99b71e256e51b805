"""`tilemlp bench kernels --tune`: the fastest instance, raster and swizzle of every size.

The sweep narrows down: all instances at a glance, then all orders of the best few at a glance, then
the best of those in the steady state, together with what the library chooses now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu, gpu_slug
from service.bench.kernel_options import KernelBenchOptions, Progress, require_gpu
from service.bench.kernel_problem import Problem, Size, draw_problems
from service.bench.kernel_variants import candidates, make_calls, make_fused_calls
from service.bench.kernels import PACKAGES
from service.bench.timing import CapturedCalls, Steadiness, Timing, Visitable, measure
from service.kernels.abi import Raster
from service.kernels.launcher import Launcher, default_launcher
from service.kernels.library import KernelChoice

ORDERS = tuple(
    (raster, swizzle)
    for raster in (Raster.ALONG_M, Raster.ALONG_N)
    for swizzle in (1, 2, 3, 4, 6, 8, 12, 16)
)
_GLANCE = Steadiness(settle_s=0.015, measure_s=0.03, rounds=1)
_INSTANCES_KEPT = 3
_CHOICES_KEPT = 3


def run_tune(options: KernelBenchOptions, progress: Progress) -> list[str]:
    """Sweep every size, write `<gpu>-dispatch.json` after each, and return lines to print.

    Entries are {model, tokens, hidden, intermediate, config, raster, swizzle, us, gemm_us, now_us,
    runners_up}: the best choice at that M, cuBLAS's bare GEMM, what the library chose before.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu()
    launcher = default_launcher()
    gpu = describe_gpu()
    table: dict[str, object] = {
        **describe_environment(options.command, PACKAGES, options.commit),
        **gpu,
        "library": launcher.library.build_info,
        "steadiness": asdict(options.steadiness),
    }
    path = options.results / f"{gpu_slug(str(gpu['gpu']))}-dispatch.json"
    options.results.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, object]] = []
    num_sms = int(str(gpu["multiprocessors"]))
    began, sizes = time.monotonic(), options.sizes
    for index, problem in enumerate(draw_problems(sizes)):
        if time.monotonic() - began > options.budget_s:
            break
        progress(index, len(sizes), f"{problem.size.model}, {problem.size.tokens} tokens")
        entries.append(_Sweep(launcher, num_sms, problem, options.steadiness).entry())
        path.write_text(json.dumps({**table, "entries": entries}, indent=1) + "\n")
    return [_line(entry) for entry in entries]


class _Sweep:
    """The search at one size."""

    def __init__(
        self, launcher: Launcher, num_sms: int, problem: Problem, steadiness: Steadiness
    ) -> None:
        self._launcher = launcher
        self._num_sms = num_sms
        self._problem = problem
        self._steadiness = steadiness

    def entry(self) -> dict[str, object]:
        """The line of the table."""
        size = self._problem.size
        now = self._chosen_now(size)
        instances = [KernelChoice(config.id) for config in candidates(self._launcher.library)]
        orders = [
            KernelChoice(choice.config, raster, swizzle)
            for choice in self._best(instances, _INSTANCES_KEPT)
            for raster, swizzle in ORDERS
        ]
        finalists = {now, *self._best(orders, _CHOICES_KEPT)}
        gemm = CapturedCalls(make_calls("gemm", self._problem))
        timings = self._measure(finalists, gemm)
        ranked = sorted(finalists, key=lambda choice: timings[self._name(choice)].us)
        best = ranked[0]
        return {
            "model": size.model,
            "tokens": size.tokens,
            "hidden": size.hidden,
            "intermediate": size.intermediate,
            "config": self._launcher.library.configs[best.config].name,
            "raster": Raster(best.raster).name.lower(),
            "swizzle": best.swizzle,
            "us": round(timings[self._name(best)].us, 2),
            "gemm_us": round(timings["gemm"].us, 2),
            "now": self._name(now),
            "now_us": round(timings[self._name(now)].us, 2),
            "runners_up": {
                self._name(choice): round(timings[self._name(choice)].us, 2)
                for choice in ranked[1:]
            },
        }

    def _best(self, choices: Sequence[KernelChoice], count: int) -> list[KernelChoice]:
        captured = {self._name(choice): self._capture(choice) for choice in choices}
        glances = measure(captured, _GLANCE)
        return sorted(choices, key=lambda choice: glances[self._name(choice)].us)[:count]

    def _measure(self, choices: set[KernelChoice], gemm: Visitable) -> dict[str, Timing]:
        captured: dict[str, Visitable] = {
            self._name(choice): self._capture(choice) for choice in choices
        }
        steadiness = self._steadiness.for_tokens(self._problem.size.tokens)
        return measure({**captured, "gemm": gemm}, steadiness)

    def _capture(self, choice: KernelChoice) -> CapturedCalls:
        return CapturedCalls(make_fused_calls(self._launcher, self._problem, choice))

    def _chosen_now(self, size: Size) -> KernelChoice:
        library = self._launcher.library
        return library.select(size.tokens, size.intermediate, size.hidden, self._num_sms)

    def _name(self, choice: KernelChoice) -> str:
        config = self._launcher.library.configs[choice.config].name
        return f"{config} {Raster(choice.raster).name.lower()} {choice.swizzle}"


def _line(entry: dict[str, object]) -> str:
    us, gemm_us, now_us = (float(str(entry[name])) for name in ("us", "gemm_us", "now_us"))
    return (
        f"{entry['model']!s:13} {entry['tokens']!s:>6}  {entry['config']!s:16} "
        f"{entry['raster']!s:8} {entry['swizzle']}  {us:9.1f} µs, {us / gemm_us:.3f} of the GEMM, "
        f"{now_us / gemm_us:.3f} as the library chose before"
    )
