"""What `tilemlp bench service --peers` is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.bench.peers.mlp import ECHO
from service.engine.presets import PRESETS
from service.errors import ConfigError

# Rows of a request and clients, from the least work to the most bytes.
CASES = ((1, 1), (64, 32), (2048, 16))


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """One comparison.

    Attributes:
        models: `echo`, which computes nothing, or presets.
        cases: Rows and clients; every model and server is measured in each.
        rounds: Measurements of each, whose medians count.
        duration_s: Of one of them.
        warm_up_s: Under load, before each.

    Raises:
        ConfigError: a model is none.
    """

    models: Sequence[str]
    cases: Sequence[tuple[int, int]] = CASES
    rounds: int = 3
    duration_s: float = 3.0
    warm_up_s: float = 1.0

    def __post_init__(self) -> None:
        for model in self.models:
            if model != ECHO and model not in PRESETS:
                raise ConfigError(
                    f"models: must be of {', '.join((ECHO, *PRESETS))}, one is {model!r}"
                )


def parse_cases(text: str) -> tuple[tuple[int, int], ...]:
    """Rows and clients of a text such as `1x1,64x32`.

    Raises:
        ConfigError: it is not of that form.
    """
    cases = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,4})", part.strip())
        if found is None:
            raise ConfigError(f"cases: must be like 1x1,64x32 (rows x clients), is {text!r}")
        cases.append((int(found[1]), int(found[2])))
    return tuple(cases)
