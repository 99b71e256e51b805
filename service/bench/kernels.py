"""`tilemlp bench kernels`: the fused kernels against what they replace, at real model shapes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from service.bench.ceilings import measure_ceilings, measure_host_us
from service.bench.environment import describe_environment
from service.bench.gpu import card_table, describe_gpu, watts_and_mhz
from service.bench.kernel_options import KernelBenchOptions, Progress, require_gpu
from service.bench.kernel_problem import Problem, Size, draw_problems
from service.bench.kernel_results import (
    KernelRow,
    csv_path,
    merge_rows,
    read_about,
    read_rows,
    supersede,
    write_about,
    write_rows,
)
from service.bench.kernel_variants import eager, make_calls
from service.engine.gpus import gpu_slug
from service.kernels.launcher import Launcher, default_launcher
from service.kernels.library import KernelChoice
from service.kernels.timing import CapturedCalls, Timing, measure
from service.kernels.tuner import GLANCE, candidates, choice_name, fused_calls, time_choices

PACKAGES = ("torch", "triton", "quack-kernels", "nvidia-cutlass-dsl", "numpy")
# Where nothing was tuned, every instance is looked at briefly, and so many of the fastest are
# measured as everything else.
_SHORTLISTED = 2
_OURS = ("fused", "kernel1", "kernel2")


def run_kernel_bench(options: KernelBenchOptions, progress: Progress) -> list[str]:
    """Measure, write the results files after every size, and return lines to print.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu()
    bench = KernelBench(options, default_launcher())
    began, sizes = time.monotonic(), options.sizes
    for index, problem in enumerate(draw_problems(sizes)):
        if time.monotonic() - began > options.budget_s:
            bench.run["left_out"] = [f"{size.model} {size.tokens}" for size in sizes[index:]]
            bench.write()
            break
        progress(index, len(sizes), f"{problem.size.model}, {problem.size.tokens} tokens")
        bench.measure_size(problem)
        bench.write()
    return bench.table()


class KernelBench:
    """One run: the rows measured so far, and the conditions they were measured under."""

    def __init__(self, options: KernelBenchOptions, launcher: Launcher) -> None:
        self._options = options
        self._launcher = launcher
        self._rows: list[KernelRow] = []
        gpu = describe_gpu()
        self._slug = gpu_slug(str(gpu["gpu"]))
        self._num_sms = int(str(gpu["multiprocessors"]))
        self._table = card_table(options.table_path(self._slug), launcher.library, gpu)
        self._ceilings = measure_ceilings(options.steadiness)
        self._sizes: list[dict[str, object]] = []
        self.run: dict[str, object] = {
            **describe_environment(options.command, PACKAGES, options.commit),
            **gpu,
            "library": launcher.library.build_info,
            "steadiness": asdict(options.steadiness),
            "ceilings": self._ceilings,
            "host_us": measure_host_us(launcher),
            "sizes": self._sizes,
        }
        path = csv_path(options.results, self._slug)
        kept = options.add and path.exists()
        self._earlier = read_rows(path) if kept else []
        self._earlier_runs = read_about(path.with_suffix(".json")) if kept else []

    def measure_size(self, problem: Problem) -> None:
        """Measure all variants at one size and keep the row."""
        size, variants = problem.size, self._options.variants
        captured = {
            name: CapturedCalls(make_calls(name, problem), watts_and_mhz)
            for name in variants
            if name not in _OURS
        }
        chosen = self._chosen(size)
        if "fused" in variants:
            captured["fused"] = self._capture(problem, chosen)
        instances: dict[str, KernelChoice] = {}
        for kernel in (1, 2):
            if f"kernel{kernel}" in variants:
                for choice in self._shortlist(problem, kernel):
                    instances[self._name(choice)] = choice
        if "fused" in variants:
            instances.pop(self._name(chosen), None)
        captured.update({name: self._capture(problem, it) for name, it in instances.items()})
        timings = measure(captured, self._options.steadiness.for_tokens(size.tokens))
        self._rows.append(self._row(problem, chosen, instances, timings))
        self._sizes.append(
            {
                "model": size.model,
                "tokens": size.tokens,
                "variants": {name: asdict(timing) for name, timing in timings.items()},
            }
        )

    def write(self) -> None:
        """Write both results files as far as they are."""
        self._options.results.mkdir(parents=True, exist_ok=True)
        path = csv_path(self._options.results, self._slug)
        write_rows(path, merge_rows(self._earlier, self._rows))
        write_about(path.with_suffix(".json"), supersede(self._earlier_runs, self.run))

    def table(self) -> list[str]:
        """Lines to print: times of the run as parts of the bare GEMM's."""
        columns = ("eager", "compile", "merged", "quack", "kernel1", "kernel2", "fused")
        lines = ["model          tokens    gemm µs  " + "".join(f"{name:>9}" for name in columns)]
        for row in self._rows:
            cells = [_ratio(getattr(row, f"{name}_us"), row.gemm_us) for name in columns]
            gemm = f"{row.gemm_us:9.1f}" if row.gemm_us else " " * 9
            lines.append(
                f"{row.model:13} {row.tokens:7}  {gemm}  "
                + "".join(f"{cell:>9}" for cell in cells)
                + f"  {row.chosen or ''}"
            )
        return lines

    def _chosen(self, size: Size) -> KernelChoice:
        """What a service runs: the table's choice, or the library's where it has none."""
        library = self._launcher.library
        tuned = self._table.best(size.tokens, size.intermediate, size.hidden)
        return tuned or library.select(size.tokens, size.intermediate, size.hidden, self._num_sms)

    def _shortlist(self, problem: Problem, kernel: int) -> list[KernelChoice]:
        """The fastest choices of a kernel that the tuner knows, or that a glance finds."""
        size, configs = problem.size, self._launcher.library.configs
        tuned = self._table.ranked(size.tokens, size.intermediate, size.hidden)
        known = [choice for choice in tuned if configs[choice.config].kernel == kernel]
        if known:
            return known[:_SHORTLISTED]
        choices = [
            KernelChoice(config.id)
            for config in candidates(self._launcher.library, size.tokens)
            if config.kernel == kernel
        ]
        us = time_choices(self._launcher, problem.operands, choices, GLANCE)
        return sorted(choices, key=us.__getitem__)[:_SHORTLISTED]

    def _capture(self, problem: Problem, choice: KernelChoice) -> CapturedCalls:
        calls = fused_calls(self._launcher, problem.operands, choice)
        return CapturedCalls(calls, watts_and_mhz)

    def _name(self, choice: KernelChoice) -> str:
        return choice_name(choice, self._launcher.library)

    def _row(
        self,
        problem: Problem,
        chosen: KernelChoice,
        instances: Mapping[str, KernelChoice],
        timings: Mapping[str, Timing],
    ) -> KernelRow:
        size, configs = problem.size, self._launcher.library.configs

        def us(name: str) -> float | None:
            return timings[name].us if name in timings else None

        def best_us(kernel: int) -> float | None:
            if f"kernel{kernel}" not in self._options.variants:
                return None
            ours = {**instances, "fused": chosen}
            return min(
                timings[name].us
                for name, choice in ours.items()
                if name in timings and configs[choice.config].kernel == kernel
            )

        fused = us("fused")
        rate = self._ceilings["hbm_read_bytes_per_s"]
        return KernelRow(
            model=size.model,
            tokens=size.tokens,
            hidden=size.hidden,
            intermediate=size.intermediate,
            eager_us=us("eager"),
            compile_us=us("compile"),
            merged_us=us("merged"),
            gemm_us=us("gemm"),
            quack_us=us("quack"),
            kernel1_us=best_us(1),
            kernel2_us=best_us(2),
            fused_us=fused,
            chosen=configs[chosen.config].name if fused else None,
            mismatch_eager=self._mismatch_eager(problem) if us("eager") else None,
            mismatch_fused=self._mismatch_fused(problem, chosen) if fused else None,
            hbm_fraction=size.bytes / fused * 1e6 / rate if fused else None,
        )

    def _mismatch_eager(self, problem: Problem) -> float:
        return problem.off_by_one_percent(eager(problem.x, problem.weights[0]))

    def _mismatch_fused(self, problem: Problem, chosen: KernelChoice) -> float:
        problem.out.fill_(float("nan"))
        self._launcher(problem.x, problem.weights[0], problem.out, "silu", chosen)
        return problem.off_by_one_percent(problem.out)


def _ratio(us: float | None, base: float | None) -> str:
    return f"{us / base:.3f}" if us and base else ""
