"""`tilemlp bench paper`: what the paper's experiments need besides `tilemlp bench kernels`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch._dynamo.exc import BackendCompilerFailed

from service.bench.ceilings import measure_ceilings
from service.bench.environment import describe_environment
from service.bench.gpu import card_table, describe_gpu, watts_and_mhz
from service.bench.kernel_options import Progress, require_gpu
from service.bench.kernel_problem import ModelTensors, Problem, Size
from service.bench.kernel_variants import make_calls
from service.bench.kernels import PACKAGES
from service.bench.paper_compile import MODES, Mode, count_launches, make_mode_calls
from service.bench.paper_mismatch import CHECKED_TOKENS, measure_mismatch
from service.bench.paper_options import WEIGHT_STDS, PaperOptions
from service.bench.paper_parts import draw_downs, make_parts
from service.bench.paper_results import (
    CompileRow,
    PaperResults,
    PartsRow,
    paper_path,
    write_paper,
)
from service.engine.gpus import gpu_slug
from service.kernels.dispatch_table import TABLES, table_path
from service.kernels.launcher import Launcher, default_launcher
from service.kernels.library import KernelChoice
from service.kernels.timing import CapturedCalls, measure
from service.kernels.tuner import candidates, fused_calls

# What it measures, and the measuring.
Step: TypeAlias = tuple[str, Callable[[], None]]


def run_paper_bench(options: PaperOptions, progress: Progress) -> list[str]:
    """Measure, write the results file after every step, and return lines to print.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu("bench paper")
    began = time.monotonic()
    bench = PaperBench(options, default_launcher())
    steps = bench.steps
    for done, (what, step) in enumerate(steps):
        if time.monotonic() - began > options.budget_s:
            bench.found.left_out += [left for left, _ in steps[done:]]
            break
        progress(done, len(steps), what)
        step()
        bench.write()
    bench.finish()
    bench.write()
    return bench.table()


@dataclass(slots=True)
class _Compiling:
    """A size whose modes are being compiled, to be timed together."""

    size: Size
    captured: dict[str, CapturedCalls] = field(default_factory=dict)
    compile_s: dict[str, float] = field(default_factory=dict)
    calls: dict[str, Callable[[], object]] = field(default_factory=dict)


class PaperBench:
    """One run: what was found so far, and the size that is being compiled for."""

    def __init__(self, options: PaperOptions, launcher: Launcher) -> None:
        self._options = options
        self._launcher = launcher
        gpu = describe_gpu()
        slug = gpu_slug(str(gpu["gpu"]))
        self._num_sms = int(str(gpu["multiprocessors"]))
        self._path = paper_path(options.results, slug)
        path = table_path(slug, options.tables or TABLES)
        self._table = card_table(path, launcher.library, gpu)
        self._tensors: tuple[str, ModelTensors] | None = None
        self._compiling: _Compiling | None = None
        self._compiled: list[tuple[CompileRow, _Compiling]] = []
        about = {
            **describe_environment(options.command, PACKAGES, options.commit),
            **gpu,
            "library": launcher.library.build_info,
            "steadiness": asdict(options.steadiness),
            "ceilings": measure_ceilings(options.steadiness),
        }
        self.found = PaperResults(about, {mode.name: mode.about for mode in MODES})

    @property
    def steps(self) -> list[Step]:
        """Everything to measure in order; none takes longer than one size and one mode."""
        options = self._options
        models = dict.fromkeys(size.model for size in options.sizes)
        return [
            *(
                (f"mismatch {model} {std:g}", partial(self._mismatch, model, std))
                for model in models
                for std in WEIGHT_STDS
            ),
            *((f"parts {_name(size)}", partial(self._parts, size)) for size in options.sizes),
            *(
                (f"compile {_name(size)} {mode.name}", partial(self._compile, size, mode))
                for size in options.compile_sizes
                for mode in MODES
            ),
        ]

    def write(self) -> None:
        """Write the results file as far as it is."""
        write_paper(self._path, self.found)

    def finish(self) -> None:
        """Time what was compiled last, and count the launches of all that was compiled."""
        self._time_compiled()
        for row, compiling in self._compiled:
            for name, call in compiling.calls.items():
                launches = count_launches(call)
                if launches is not None:
                    row.launches[name] = launches

    def table(self) -> list[str]:
        """Lines to print."""
        found = self.found
        lines = [
            f"parts     {row.model:13} {row.tokens:5}  {row.sum_us:9.1f} µs, elementwise "
            f"{row.share:.3f}, parts over whole {row.sum_us / row.mlp_us:.3f}"
            for row in found.parts
        ]
        lines += [
            f"compile   {row.model:13} {row.tokens:5}  {name:28} {row.us['eager'] / us:.3f} of "
            f"eager's speed, {row.launches.get(name, '?')} kernels"
            for row in found.compiled
            for name, us in row.us.items()
        ]
        lines += [
            f"mismatch  {row.model:13} {row.std:5g}  eager {row.eager:.5f}, FP32 {row.fp32:.5f}, "
            f"Kernel-1 {row.kernel1:.5f}, Kernel-2 {row.kernel2:.5f}"
            for row in found.mismatch
        ]
        return [*lines, *(f"left out  {what}" for what in found.left_out)]

    def _mismatch(self, model: str, std: float) -> None:
        size = Size(model, CHECKED_TOKENS)
        choices = {kernel: self._choice(size, kernel) for kernel in (1, 2)}
        self.found.mismatch.append(measure_mismatch(model, std, self._launcher, choices))

    def _parts(self, size: Size) -> None:
        problem = self._problem(size)
        calls = make_parts(problem, draw_downs(problem))
        captured = {name: CapturedCalls(of_part, watts_and_mhz) for name, of_part in calls.items()}
        timings = measure(captured, self._options.steadiness.for_tokens(size.tokens))
        us = {f"{name}_us": timing.us for name, timing in timings.items()}
        self.found.parts.append(PartsRow(size.model, size.tokens, **us))

    def _compile(self, size: Size, mode: Mode) -> None:
        """Compile and capture; the modes of a size are timed together once the last one is."""
        if self._compiling is None or self._compiling.size != size:
            self._time_compiled()
            self._compiling = _Compiling(size)
        began = time.monotonic()
        calls = make_mode_calls(mode, self._problem(size))
        try:
            self._compiling.captured[mode.name] = CapturedCalls(calls, watts_and_mhz)
        except BackendCompilerFailed as error:
            # Such as where a card has no Triton template for the shape; the other modes are worth
            # having all the same.
            reason = str(error).splitlines()[0]
            self.found.left_out.append(f"compile {_name(size)} {mode.name} ({reason})")
            return
        self._compiling.compile_s[mode.name] = round(time.monotonic() - began, 2)
        self._compiling.calls[mode.name] = calls[0]

    def _time_compiled(self) -> None:
        compiling, self._compiling = self._compiling, None
        if compiling is None:
            return
        size = compiling.size
        problem = self._problem(size)
        fused = fused_calls(self._launcher, problem.operands, self._choice(size))
        captured = {
            "eager": CapturedCalls(make_calls("eager", problem), watts_and_mhz),
            "fused": CapturedCalls(fused, watts_and_mhz),
            **compiling.captured,
        }
        timings = measure(captured, self._options.steadiness.for_tokens(size.tokens))
        us = {name: timing.us for name, timing in timings.items()}
        row = CompileRow(size.model, size.tokens, us, compiling.compile_s)
        self.found.compiled.append(row)
        self._compiled.append((row, compiling))

    def _problem(self, size: Size) -> Problem:
        """On tensors that all sizes of one model share while they follow each other."""
        if self._tensors is None or self._tensors[0] != size.model:
            self._tensors = None
            torch.cuda.empty_cache()
            sizes = (*self._options.sizes, *self._options.compile_sizes)
            largest = max(other.tokens for other in sizes if other.model == size.model)
            self._tensors = (size.model, ModelTensors(size.model, largest))
        return Problem(size, self._tensors[1])

    def _choice(self, size: Size, kernel: int | None = None) -> KernelChoice:
        """What a service runs, of one kernel if so asked; untuned, the library's, or any."""
        shape = (size.tokens, size.intermediate, size.hidden)
        tuned = self._table.best(*shape, kernel)
        if tuned is not None:
            return tuned
        library = self._launcher.library
        chosen = library.select(*shape, self._num_sms)
        if kernel in (None, library.configs[chosen.config].kernel):
            return chosen
        return KernelChoice(
            next(c.id for c in candidates(library, size.tokens) if c.kernel == kernel)
        )


def _name(size: Size) -> str:
    return f"{size.model} {size.tokens}"
