"""The command line: `tilemlp serve`, `load`, `doctor`, and `bench` from `service.bench_cli`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.progress import Progress

from service import __version__
from service.bench_cli import bench
from service.config import Settings, load_settings, parse_devices, parse_layers
from service.engine.base import DType, Output
from service.errors import ConfigError, StartError
from service.load.options import Transport
from service.log import configure_logging

app = typer.Typer(
    help="SwiGLU MLPs of LLMs, resident on a GPU and served over HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_T = TypeVar("_T")
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
    depends = info.default is None or info.default_factory is not None
    default = "" if depends else f", default {info.default}"
    return f"{info.description} (MLP_{name.upper()}{default})"


@app.command()
@settings_flags
def serve(**flags: Any) -> None:  # noqa: ANN401 - typed by settings_flags
    """Load the weights and serve them until SIGTERM."""
    settings = load_settings(**flags)
    configure_logging(settings.log_level)
    layers = None if settings.layers is None else parse_layers(settings.layers)
    devices = () if settings.devices is None else parse_devices(settings.devices)
    # Imported here so that neither `tilemlp load --help` nor a wrong setting waits for torch.
    from service.engine.create import create_engine
    from service.server import serve as run

    with Progress(console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task("loading layers", total=None)
        engine, reason = create_engine(
            model=settings.model,
            preset=settings.preset,
            model_name=settings.model_name,
            layers=layers,
            device=settings.device,
            devices=devices,
            backend=settings.backend,
            dispatch=settings.dispatch,
            autotune=settings.autotune,
            max_batch_tokens=settings.max_batch_tokens,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _err.print(f"[bold]tilemlp {__version__}[/bold]  {engine.model.name}  {reason}")
    sys.exit(run(settings, engine, reason))


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


@app.command()
def load(
    url: Annotated[str, typer.Option(help="Where the service listens.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Served name; by default the service's only model.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Layer of the model.")] = None,
    output: Annotated[Output, typer.Option(help="Which tensor to ask for.")] = Output.MLP,
    dtype: Annotated[DType, typer.Option(help="Element type on the wire.")] = DType.BF16,
    transport: Annotated[
        Transport, typer.Option(help="shm: tensors in shared memory, on the service's own host.")
    ] = Transport.HTTP,
    rows: Annotated[
        str, typer.Option(help="Rows per request, or a weighted mix: 1:0.7,64:0.25,512:0.05")
    ] = "1",
    connections: Annotated[
        int, typer.Option(help="Connections; in the closed loop also the requests in flight.")
    ] = 8,
    rate_per_s: Annotated[
        float | None,
        typer.Option(help="Open loop: mean Poisson arrivals per second. Without it, closed loop."),
    ] = None,
    duration_s: Annotated[float, typer.Option(help="Measured seconds of each load.")] = 10.0,
    warm_up_s: Annotated[float, typer.Option(help="Seconds under load before that.")] = 2.0,
    timeout_s: Annotated[float, typer.Option(help="Longest seconds for one answer.")] = 30.0,
    max_backlog_requests: Annotated[
        int, typer.Option(help="Open loop: arrivals that may wait for a connection.")
    ] = 10_000,
    processes: Annotated[int, typer.Option(help="Client processes that share the work.")] = 1,
    seed: Annotated[int, typer.Option(help="Of payloads, mix and arrivals.")] = 0,
    api_key: Annotated[
        str | None, typer.Option(envvar="MLP_API_KEY", help="The service's key, if it has one.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the whole report to this file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Measure a series of loads up to the given one and draw them here (PNG)."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No live progress.")] = False,
) -> None:
    """Load-test a running service, checking every answer.

    Exits with 1 when there were errors or wrong answers.
    """
    from service.load.options import LoadOptions, parse_rows
    from service.load.render import render_report
    from service.load.report import write_json
    from service.load.run import run_load

    options = LoadOptions(
        url=url,
        model=model,
        layer=layer,
        output=output,
        dtype=dtype,
        transport=transport,
        rows=parse_rows(rows),
        connections=connections,
        rate_per_s=rate_per_s,
        sweep=plot is not None,
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        timeout_s=timeout_s,
        max_backlog_requests=max_backlog_requests,
        processes=processes,
        seed=seed,
        api_key=api_key,
        quiet=quiet,
    )
    # What could not be written or drawn in the end is said before the load, not after it.
    for name, path in (("json", json), ("plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{name}: must be in a directory that exists, is {path}")
    if plot is not None:
        from service.load.plot import plot_report
    report = run_load(options)
    typer.echo(render_report(report))
    if json is not None:
        write_json(report, json)
    if plot is not None:
        plot_report(report, plot)
    if not report.ok:
        raise typer.Exit(1)


app.add_typer(bench, name="bench", no_args_is_help=True)
