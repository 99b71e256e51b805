"""What `tilemlp bench paper` is asked for, and the paper's set of sizes as it is taken here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.bench.kernel_options import parse_models, parse_tokens
from service.bench.kernel_problem import Size
from service.errors import ConfigError
from service.kernels.timing import Steadiness

# 20 configurations, Qwen2.5 from 0.5B to 72B, is what is known of the paper's set. Five sizes from
# one end to the other, each 1.4 to 2.3 times as wide as the one before, by four batches, half of
# them below the 2048 tokens from which the paper uses Kernel-1; all are rows of
# `tilemlp bench kernels`. The largest is 4096 because there, on 0.5B, the paper's byte model gives
# the increase in arithmetic intensity that the paper names as its highest.
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b")
TOKENS = (256, 1024, 2048, 4096)
PAPER_SIZES = tuple(Size(model, tokens) for model in MODELS for tokens in TOKENS)
# 0.02 is how these models are initialised; trained gate weights lie between that and 0.1, and the
# rest shows where the share of wrong elements goes.
WEIGHT_STDS = (0.02, 0.05, 0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class PaperOptions:
    """What to measure, for how long, and where it goes.

    Attributes:
        sizes: Where the parts of eager are timed; their models are checked at all weight scales.
        compile_sizes: Where torch.compile's modes are timed, the most wanted first.
        steadiness: Length and number of visits for M above 256.
        budget_s: Seconds after which nothing further is begun.
        results: Directory of the results files.
        tables: Directory of the dispatch tables; None for the package's.
        command: What a reader would type.
        commit: Where there is no checkout to ask.
    """

    sizes: tuple[Size, ...]
    compile_sizes: tuple[Size, ...]
    steadiness: Steadiness
    budget_s: float
    results: Path
    tables: Path | None
    command: str
    commit: str | None


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Sizes out of a list such as `0.5b:2048,72b:256`; none out of an empty text.

    Raises:
        ConfigError: one of them is not a preset and a number of tokens.
    """
    found = []
    for entry in filter(None, text.split(",")):
        model, colon, tokens = entry.partition(":")
        if not colon:
            raise ConfigError(f"compile: must be preset:tokens with commas, is {entry!r}")
        found += [
            Size(name, count) for name in parse_models(model) for count in parse_tokens(tokens)
        ]
    return tuple(found)
