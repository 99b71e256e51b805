"""`tilemlp bench decode`: gate/up, down and the whole MLP of few tokens, read at memory speed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.bench.ceilings import measure_ceilings
from service.bench.decode_problem import MlpProblem, draw_mlps
from service.bench.decode_results import (
    DecodeRow,
    decode_path,
    read_decode_rows,
    write_decode_rows,
)
from service.bench.environment import describe_environment
from service.bench.gpu import card_table, describe_gpu
from service.bench.kernel_options import Progress, require_gpu
from service.bench.kernel_problem import Size
from service.bench.kernel_results import merge_rows, read_about, supersede, write_about
from service.engine.gpus import gpu_slug
from service.kernels.dispatch_table import TABLES, table_path
from service.kernels.down import DownLauncher
from service.kernels.launcher import Launcher, default_launcher
from service.kernels.timing import CapturedCalls, Steadiness, measure

PACKAGES = ("torch", "triton", "numpy")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to measure, for how long, and where it goes.

    Attributes:
        models: Presets.
        tokens: Values of M.
        steadiness: Length and number of visits for M above 256.
        budget_s: Seconds after which no further size is begun.
        results: Directory of the results files.
        tables: Directory of the dispatch tables; by default the package's.
        add: Keep rows of earlier runs that this one does not measure.
        command: What a reader would type.
        commit: Where there is no checkout to ask.
    """

    models: tuple[str, ...]
    tokens: tuple[int, ...]
    steadiness: Steadiness
    budget_s: float
    results: Path
    tables: Path | None
    add: bool
    command: str
    commit: str | None

    @property
    def sizes(self) -> list[Size]:
        """Every size to measure, model by model."""
        return [Size(model, tokens) for model in self.models for tokens in self.tokens]


class DecodeBench:
    """One run: the rows measured so far, and the conditions they were measured under."""

    def __init__(self, options: DecodeOptions, launcher: Launcher) -> None:
        self._options = options
        self._launcher = launcher
        self._down = DownLauncher(launcher.library)
        gpu = describe_gpu()
        slug = gpu_slug(str(gpu["gpu"]))
        self._num_sms = int(str(gpu["multiprocessors"]))
        path = table_path(slug, options.tables or TABLES)
        self._table = card_table(path, launcher.library, gpu)
        self._path = decode_path(options.results, slug)
        self._ceilings = measure_ceilings(options.steadiness)
        self._rows: list[DecodeRow] = []
        self._sizes: list[dict[str, object]] = []
        kept = options.add and self._path.exists()
        self._earlier = read_decode_rows(self._path) if kept else []
        self._earlier_runs = read_about(self._path.with_suffix(".json")) if kept else []
        self._run = {
            **describe_environment(options.command, PACKAGES, options.commit),
            **gpu,
            "library": launcher.library.build_info,
            "steadiness": asdict(options.steadiness),
            "ceilings": self._ceilings,
            "sizes": self._sizes,
        }

    def measure_size(self, problem: MlpProblem) -> None:
        """Measure everything at one size, keep the row and write the files."""
        size, library = problem.size, self._launcher.library
        shape = (size.tokens, size.intermediate, size.hidden)
        choice = self._table.best(*shape) or library.select(*shape, self._num_sms)
        calls = {**problem.baselines(), **problem.ours(self._launcher, self._down, choice)}
        timings = measure(
            {name: CapturedCalls(some) for name, some in calls.items()},
            self._options.steadiness.for_tokens(size.tokens),
        )
        us = {name: timing.us for name, timing in timings.items()}
        # Two launches are one MLP.
        us["mlp"] *= 2
        down = library.select_down(size.tokens, size.hidden, size.intermediate, self._num_sms)
        names = {
            "gate_up_config": library.configs[choice.config].name,
            "down_config": library.down_configs[down].name,
        }
        self._rows.append(self._row(size, us, names))
        self._sizes.append({"model": size.model, "tokens": size.tokens})
        self._write()

    def _row(self, size: Size, us: Mapping[str, float], names: Mapping[str, str]) -> DecodeRow:
        m, k, n = size.tokens, size.hidden, size.intermediate
        # Read and written once, 2 bytes an element; the gated intermediate stays in L2.
        bytes_ = {
            "gate_up": size.bytes,
            "down": 2 * (m * n + n * k + m * k),
            "mlp": 2 * (2 * m * k + 3 * n * k),
        }
        rate = self._ceilings["hbm_read_bytes_per_s"]
        cells: dict[str, Any] = {
            "model": size.model,
            "tokens": m,
            "hidden": k,
            "intermediate": n,
            **names,
            **{f"{name}_us": value for name, value in us.items()},
            **{f"{name}_hbm": count / us[name] * 1e6 / rate for name, count in bytes_.items()},
        }
        return DecodeRow(**cells)

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_decode_rows(self._path, merge_rows(self._earlier, self._rows))
        write_about(self._path.with_suffix(".json"), supersede(self._earlier_runs, self._run))

    def table(self) -> list[str]:
        """Lines to print: microseconds, and shares of the memory's read rate in brackets."""
        return [
            f"{row.model:13} {row.tokens:4}  gate/up {row.gate_up_us:7.2f} ({row.gate_up_hbm:.3f}) "
            f"GEMM {row.gate_up_gemm_us:7.2f} eager {row.gate_up_eager_us:7.2f}  "
            f"down {row.down_us:7.2f} ({row.down_hbm:.3f}) GEMM {row.down_gemm_us:7.2f}  "
            f"MLP {row.mlp_us:7.2f} ({row.mlp_hbm:.3f}) merged {row.mlp_merged_us:7.2f} "
            f"eager {row.mlp_eager_us:7.2f}  {row.gate_up_config} {row.down_config}"
            for row in self._rows
        ]


def run_decode_bench(options: DecodeOptions, progress: Progress) -> list[str]:
    """Measure, write the results files after every size, and return lines to print.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu("bench decode")
    bench = DecodeBench(options, default_launcher())
    began, sizes = time.monotonic(), options.sizes
    for index, problem in enumerate(draw_mlps(sizes)):
        if time.monotonic() - began > options.budget_s:
            break
        progress(index, len(sizes), f"{problem.size.model}, {problem.size.tokens} tokens")
        bench.measure_size(problem)
    return bench.table()
