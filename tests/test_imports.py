"""The house rules: arrows point down only, and each third-party name has its home.

`RULES` is the whole truth: a module that no row covers, a package of ours that its row does not
name and a third-party name that is not at home there all fail.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """What the modules under one name may import besides the standard library.

    Attributes:
        ours: Names below `service`, each with everything under it. A package may always import
            itself, and everybody the bare package, which holds the version alone.
        third: Third-party top-level names.
    """

    ours: str = ""
    third: str = ""


# The longest name that covers a module decides. From the leaves upwards.
RULES = {
    "": Row(),
    "errors": Row(),
    "log": Row(),
    "cgroups": Row(),
    "counts": Row(),
    "heartbeat": Row(),
    "interruption": Row(),
    "open_files": Row(),
    "process_memory": Row(),
    "metrics": Row("counts", third="prometheus_client"),
    "config": Row("cgroups errors", "pydantic pydantic_settings"),
    # The words that everybody shares: whoever moves requests must not need to load torch.
    "engine.base": Row(),
    "kernels": Row("errors", "torch"),
    "engine": Row("kernels errors", "torch numpy"),
    "batching": Row("engine.base errors metrics"),
    "wire": Row("engine.base errors", "numpy"),
    "wire.window": Row(),
    "shared_region": Row("wire.window engine.base errors"),
    "cuda_region": Row("wire.window engine.base errors"),
    "shared_memory": Row("shared_region cuda_region wire.window engine.base errors open_files"),
    "local_regions": Row("shared_memory shared_region cuda_region"),
    "nvml": Row("engine.base", "pynvml"),
    # What the routes know of the service, whichever process it runs in.
    "shared_tensors": Row(
        "shared_memory shared_region cuda_region batching wire.window engine.base errors"
    ),
    "shared_requests": Row("shared_tensors shared_memory batching wire.window errors"),
    "front": Row(
        "batching shared_memory wire.window engine.base config counts errors interruption"
    ),
    "runtime": Row(
        "front batching shared_requests local_regions shared_memory wire.window nvml engine.base "
        "config counts errors cgroups heartbeat process_memory metrics"
    ),
    "routes": Row(
        "front shared_memory wire batching engine.base config errors interruption",
        "fastapi starlette",
    ),
    "app": Row("routes front config errors", "fastapi starlette"),
    "http_protocol": Row("", "uvicorn"),
    "http_direct": Row("http_protocol", "httptools starlette"),
    "http_small": Row("http_direct", "uvicorn"),
    "garbage": Row(),
    "heap": Row(),
    "http_server": Row("app front http_small config errors log", "uvicorn"),
    # HTTP in other processes than the engine's; these do not load what only the engine needs.
    "workers": Row(
        "http_server runtime batching shared_requests shared_memory wire.window engine.base "
        "config counts errors metrics",
        "uvicorn",
    ),
    "workers.remote": Row(
        "workers front shared_memory wire.window batching engine.base config counts errors"
    ),
    "workers.lane": Row("workers routes front config counts errors", "uvicorn"),
    "workers.front_end": Row("workers http_server http_small garbage heap errors log"),
    "server": Row("workers http_server runtime engine.base config errors heap open_files"),
    "doctor": Row("engine kernels config errors"),
    # Clients of the service, which know it by its wire format only.
    "load": Row("engine.base errors interruption", "numpy httptools uvloop rich matplotlib"),
    # uvicorn is also the bare server that the service is compared with.
    # Apps of other servers, each with its framework; and what runs and shows them.
    "bench.peers": Row(
        "bench load engine errors",
        "litserve bentoml _bentoml_sdk ray fastapi starlette numpy torch matplotlib",
    ),
    "bench": Row(
        "load server batching engine kernels config cgroups process_memory errors log metrics",
        "torch numpy matplotlib rich uvicorn quack",
    ),
    "readme": Row("bench.peers bench runtime config errors metrics"),
    "bench_cli": Row("bench.peers bench load engine kernels config errors", "typer rich"),
    "cli": Row(
        "bench_cli server doctor load engine kernels config errors log",
        "typer rich pydantic",
    ),
    "__main__": Row("cli"),
}


def _is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def row_of(name: str) -> tuple[str, Row] | None:
    """The row that covers a module of ours, given by its name below `service`."""
    covering = [prefix for prefix in RULES if prefix and _is_under(name, prefix)]
    if name == "":
        covering = [""]
    return (longest := max(covering, key=len), RULES[longest]) if covering else None


def imported(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                # `from service.wire import raw` imports a module, `from service.errors import X`
                # only a name in one.
                full = f"{module}.{alias.name}"
                yield node.lineno, full if full in modules else module
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            argument = node.args[0]
            known = isinstance(argument, ast.Constant)
            yield node.lineno, str(argument.value) if known else "what it computes"


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def violations(module: str, source: str, modules: set[str]) -> list[str]:
    """What a module imports against the rules, one sentence each.

    Args:
        module: Full name, such as `service.wire.raw`.
        source: Its text.
        modules: Full names of all modules of ours.
    """
    name = module.removeprefix("service").lstrip(".")
    found = row_of(name)
    if found is None:
        return [f"{module}: no row of RULES covers it"]
    prefix, row = found
    allowed = [*row.ours.split(), *([prefix] if prefix else [])]
    faults = []
    for line, target in imported(ast.parse(source), modules):
        top = target.partition(".")[0]
        if top == "service":
            below = target.removeprefix("service").lstrip(".")
            good = not below or any(_is_under(below, other) for other in allowed)
        else:
            good = top in sys.stdlib_module_names or top in row.third.split()
        if not good:
            faults.append(f"{module}:{line}: must not import {target or 'relatively'}")
    return faults


def our_modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    for path in sorted((ROOT / "service").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = our_modules()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_below_it(module: str):
    assert violations(module, MODULES[module].read_text(), set(MODULES)) == []


def test_the_rules_have_no_cycle():
    """Arrows that pointed down row by row, and up all in all, would be a loop."""
    below = {name: {row_of(other)[0] for other in row.ours.split()} for name, row in RULES.items()}
    finished: set[str] = set()
    while len(finished) < len(below):
        bottom = {name for name, others in below.items() if others <= finished} - finished
        assert bottom, f"a cycle among {sorted(set(below) - finished)}"
        finished |= bottom


def test_the_rules_name_nothing_that_is_not_there():
    names = {module.removeprefix("service").lstrip(".") for module in MODULES}
    assert set(RULES) <= names
    imported_names = {
        target.partition(".")[0]
        for path in MODULES.values()
        for _, target in imported(ast.parse(path.read_text()), set())
    }
    assert {"torch", "fastapi", "prometheus_client"} <= imported_names, "the search finds nothing"


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("service.wire.raw", "import service.batching"),
        ("service.wire.raw", "from service.batching.policy import Limits"),
        ("service.wire.raw", "from service import batching"),
        ("service.wire.raw", "from service.routes import body"),
        ("service.wire.raw", "from service.engine.reference import ReferenceEngine"),
        ("service.wire.raw", "from service.engine import reference"),
        ("service.batching.policy", "import numpy as np"),
        ("service.batching.policy", "from service.wire.tensor import WireTensor"),
        ("service.batching.policy", "from service.config import Settings"),
        ("service.batching.policy", "from service.runtime import Runtime"),
        ("service.engine.base", "import torch"),
        ("service.engine.reference", "from service.batching.request import Answer"),
        ("service.kernels.reference", "from service.engine.base import DType"),
        ("service.routes.mlp", "import torch"),
        ("service.routes.mlp", "import numpy"),
        ("service.routes.mlp", "from service.server import Server"),
        ("service.app", "import uvicorn"),
        ("service.load.run", "from service.batching.request import Answer"),
        ("service.load.run", "import torch"),
        ("service.metrics", "from service.errors import outcomes"),
        ("service.errors", "from service.config import Settings"),
        ("service.log", "import rich"),
        ("service.config", "from service.engine.presets import PRESETS"),
        ("service.config", "import yaml"),
        ("service.app", "def f():\n    if True:\n        import torch"),
        ("service.app", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
        ("service.app", "import importlib\nimportlib.import_module('torch')"),
        ("service.app", "from importlib import import_module\nimport_module(input())"),
        ("service.app", "__import__('torch')"),
        ("service.app", "from . import config"),
        ("service.app", "from .routes import mlp"),
        ("service.newcomer", ""),
        ("service.enginex", ""),
    ],
)
def test_a_forbidden_import_is_found(module: str, statement: str):
    assert violations(module, f"import json\n{statement}\n", set(MODULES))


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("service.wire.raw", "import numpy as np\nfrom numpy.typing import NDArray"),
        ("service.wire.raw", "from service import __version__"),
        ("service.wire.raw", "from service.engine.base import DType"),
        ("service.wire.raw", "from service.wire import tensor"),
        ("service.batching.policy", "import collections.abc, asyncio\nfrom queue import Queue"),
        ("service.engine.weights", "from service.kernels import reference"),
        ("service.routes.mlp", "import starlette.types\nfrom fastapi import APIRouter"),
    ],
)
def test_an_allowed_import_is_not(module: str, statement: str):
    assert violations(module, statement, set(MODULES)) == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("service.engine.base", {"torch", "numpy", "fastapi"}),
        ("service.batching.worker", {"torch", "numpy", "fastapi", "pydantic"}),
        ("service.workers.front_end", {"torch", "numpy", "prometheus_client", "pynvml", "typer"}),
        ("service.wire.v2", {"torch", "fastapi", "starlette", "prometheus_client"}),
        # The load generator's start-up, and `tilemlp --help`, must not wait for torch.
        ("service.load.run", {"torch", "fastapi", "matplotlib"}),
        ("service.cli", {"torch", "fastapi", "uvicorn", "matplotlib"}),
    ],
)
def test_what_an_import_loads_at_run_time(module: str, absent: set[str]):
    code = f"import sys, {module}; print(*sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
