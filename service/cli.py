"""The command line: `tilemlp serve`, `load`, `doctor`, `bench`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.progress import Progress

from service import __version__
from service.config import Settings, load_settings, parse_layers
from service.errors import StartError
from service.log import configure_logging

app = typer.Typer(
    help="SwiGLU MLPs of LLMs, resident on a GPU and served over HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_err = Console(stderr=True, highlight=False)
# Refused before anything was started, as other tools do for wrong usage.
_EXIT_REFUSED = 2


def main() -> None:
    """Entry point; a refusal to start is one sentence, not a traceback."""
    try:
        app()
    except StartError as error:
        print(f"tilemlp: {error}", file=sys.stderr)  # noqa: T201 - this is the user interface
        sys.exit(_EXIT_REFUSED)


def settings_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per setting, with the setting's help, default and variable."""
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Optional[_flag_type(info)],  # noqa: UP045 - built at run time
                typer.Option(f"--{name.replace('_', '-')}", help=_flag_help(name, info)),
            ],
        )
        for name, info in Settings.model_fields.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _flag_type(info: FieldInfo) -> type[int] | type[float] | type[str]:
    if info.annotation is int:
        return int
    return float if info.annotation is float else str


def _flag_help(name: str, info: FieldInfo) -> str:
    default = "" if info.default is None else f", default {info.default}"
    return f"{info.description} (MLP_{name.upper()}{default})"


@app.command()
@settings_flags
def serve(**flags: Any) -> None:  # noqa: ANN401 - typed by settings_flags
    """Load the weights and serve them until SIGTERM."""
    # Imported here so that `tilemlp load --help` does not wait for torch.
    from service.engine.create import create_engine
    from service.server import serve as run

    settings = load_settings(**flags)
    configure_logging(settings.log_level)
    layers = None if settings.layers is None else parse_layers(settings.layers)
    with Progress(console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task("loading layers", total=None)
        engine, reason = create_engine(
            model=settings.model,
            preset=settings.preset,
            model_name=settings.model_name,
            layers=layers,
            device=settings.device,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _err.print(f"[bold]tilemlp {__version__}[/bold]  {engine.model.name}  {reason}")
    sys.exit(run(settings, engine))


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"tilemlp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def doctor() -> None:
    """Show what this machine has, which backend `serve` would choose, and why."""
    from service.doctor import examine

    findings, fine = examine()
    for what, found in findings:
        typer.echo(f"{what + ':':12}{found}")
    if not fine:
        raise typer.Exit(_EXIT_REFUSED)


bench = typer.Typer(help="Benchmarks; their results files are what the README shows.")
app.add_typer(bench, name="bench", no_args_is_help=True)


@bench.command("service")
def bench_service(
    results: Annotated[
        Path, typer.Option(help="Directory for cpu-service.csv and cpu-service.json.")
    ] = Path("service/bench/results"),
) -> None:
    """Measure what the service adds to a bare ASGI echo, with a stub for the engine."""
    from service.bench.service import run_service_bench

    command = "tilemlp bench service"
    with _err.status("starting servers") as status:
        lines = run_service_bench(results, command, status.update)
    for line in lines:
        typer.echo(line)
