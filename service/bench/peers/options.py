"""What `tilemlp bench service --peers` is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.bench.peers.mlp import ECHO
from service.bench.service import has_many_cores, worker_counts
from service.engine.presets import PRESETS
from service.errors import ConfigError

# Rows of a request and clients, from the least work to the most bytes: of Qwen2.5-0.5B, 2340 rows
# are 4 MiB.
_CASES = ((1, 1), (64, 32), (2340, 16))
_CASES_OF_MANY_CORES = ((1, 1), (1, 256), (64, 32), (2340, 16), (2340, 32))


SERVERS = ("echo", "tilemlp", "tilemlp-shm", "litserve", "bentoml", "rayserve")


@dataclass(frozen=True, slots=True)
class Cases:
    """Rows and clients to measure with.

    Attributes:
        common: For every model that has none of its own.
        own: By model.
    """

    common: Sequence[tuple[int, int]]
    own: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def of(self, model: str) -> Sequence[tuple[int, int]]:
        """Those of a model."""
        return self.own.get(model, self.common)


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """One comparison.

    Attributes:
        models: `echo`, which computes nothing, or presets.
        cases: Every server is measured in each of a model's.
        workers: Of our service, which is measured with each of these counts.
        rounds: Measurements of each, whose medians count.
        duration_s: Of one of them.
        warm_up_s: Under load, before each.
        start_timeout_s: Longest time for a server to answer; Ray takes a minute on two busy cores.
        budget_s: Seconds after which no further server is started.
        only: Names of the servers to measure, ours over shared memory being `tilemlp-shm`; all
            where it is empty.
        add: Keep rows of earlier runs that this one does not measure.
        commit: Where there is no checkout to ask.

    Raises:
        ConfigError: a model is none, or cases are those of one that is not measured.
    """

    models: Sequence[str]
    cases: Cases
    workers: Sequence[int]
    rounds: int = 3
    duration_s: float = 1.0
    warm_up_s: float = 0.5
    start_timeout_s: float = 180.0
    budget_s: float = float("inf")
    only: Sequence[str] = ()
    add: bool = False
    commit: str | None = None

    def __post_init__(self) -> None:
        for model in self.models:
            if model != ECHO and model not in PRESETS:
                raise ConfigError(
                    f"models: must be of {', '.join((ECHO, *PRESETS))}, one is {model!r}"
                )
            if not self.cases.of(model):
                raise ConfigError(f"cases: must hold one for each model, have none for {model}")
        if unknown := sorted(set(self.only) - set(SERVERS)):
            raise ConfigError(f"servers: must be of {', '.join(SERVERS)}, one is {unknown[0]!r}")
        if strange := sorted(set(self.cases.own) - set(self.models)):
            names = ", ".join(self.models)
            raise ConfigError(f"cases: must be those of models ({names}), some are {strange[0]}'s")


def parse_cases(text: str | None) -> Cases:
    """Rows and clients of a text such as `1x1,64x32`; by default what this machine's cores allow.

    Those of one model follow its name and a colon: `1x1,64x32,qwen2.5-7b:2048x16`.

    Raises:
        ConfigError: it is not of that form.
    """
    if text is None:
        return Cases(_CASES_OF_MANY_CORES if has_many_cores() else _CASES)
    cases: dict[str, list[tuple[int, int]]] = {}
    for part in text.split(","):
        found = re.fullmatch(r"(?:([^:]+):)?([1-9][0-9]{0,6})x([1-9][0-9]{0,4})", part.strip())
        if found is None:
            raise ConfigError(f"cases: must be like 1x1,64x32 (rows x clients), is {text!r}")
        cases.setdefault(found[1] or "", []).append((int(found[2]), int(found[3])))
    return Cases(tuple(cases.pop("", ())), {name: tuple(own) for name, own in cases.items()})


def parse_workers(text: str | None) -> tuple[int, ...]:
    """Counts of a text such as `0,4`; by default those that this machine's cores allow.

    Raises:
        ConfigError: it is not of that form.
    """
    if text is None:
        return tuple(worker_counts())
    if re.fullmatch(r"[0-9]{1,2}(,[0-9]{1,2})*", text) is None:
        raise ConfigError(f"workers: must be like 0,4 (processes, with commas), is {text!r}")
    return tuple(dict.fromkeys(map(int, text.split(","))))
