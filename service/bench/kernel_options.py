"""What `tilemlp bench kernels` is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from service.bench.kernel_problem import Size
from service.engine.presets import PRESETS
from service.errors import ConfigError
from service.kernels.dispatch_table import TABLES, table_path
from service.kernels.timing import Steadiness

# Sizes done, sizes in all, and what is being measured now.
Progress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class KernelBenchOptions:
    """What to measure, for how long, and where it goes.

    Attributes:
        models: Presets.
        tokens: Values of M.
        variants: Of `kernel_variants.VARIANTS`.
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
    variants: tuple[str, ...]
    steadiness: Steadiness
    budget_s: float
    results: Path
    tables: Path | None
    add: bool
    command: str
    commit: str | None

    def table_path(self, gpu: str) -> Path:
        """The dispatch table of a GPU, by its slug."""
        return table_path(gpu, self.tables or TABLES)

    @property
    def sizes(self) -> list[Size]:
        """Every size to measure, model by model."""
        return [Size(model, tokens) for model in self.models for tokens in self.tokens]


def parse_models(text: str) -> tuple[str, ...]:
    """Presets out of a list with commas; `qwen2.5-` may be left out.

    Raises:
        ConfigError: there is no such preset.
    """
    names = []
    for name in text.split(","):
        full = name if name in PRESETS else f"qwen2.5-{name}"
        if full not in PRESETS:
            raise ConfigError(f"models: must be among {', '.join(PRESETS)}, is {name!r}")
        names.append(full)
    return tuple(names)


def parse_tokens(text: str) -> tuple[int, ...]:
    """Values of M out of a list with commas.

    Raises:
        ConfigError: one of them is no number from 1 up.
    """
    for number in text.split(","):
        if not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"tokens: must be numbers from 1 up, is {number!r}")
    return tuple(int(number) for number in text.split(","))


def require_gpu(command: str = "bench kernels") -> None:
    """Refuse to go on without a GPU.

    Args:
        command: Who asks.

    Raises:
        ConfigError: torch finds none.
    """
    if not torch.cuda.is_available():
        raise ConfigError(f"{command}: needs an NVIDIA GPU that torch can use, has none")


def recorded_command(arguments: Sequence[str]) -> str:
    """The command line as a reader would type it: without where this run put its files."""
    kept = []
    skipped = False
    for argument in arguments:
        name, _, value = argument.partition("=")
        if skipped:
            skipped = False
        elif name in {"--results", "--tables", "--docs", "--commit"}:
            skipped = not value
        else:
            kept.append(argument)
    return shlex.join(["tilemlp", *kept])
