"""The benchmarks on the command line: `tilemlp bench …`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from service.config import parse_devices

_T = TypeVar("_T")
_err = Console(stderr=True, highlight=False)
# What several of them have.
_Shapes = Annotated[str, typer.Option(help="Presets whose shapes to measure, with commas.")]
_Sizes = Annotated[str, typer.Option(help="Batch sizes in tokens, with commas.")]
_Visits = Annotated[int, typer.Option(min=1, help="Visits of each, in shuffled order.")]
_Settle = Annotated[float, typer.Option(min=0, help="Of a visit, before measuring.")]
_Measure = Annotated[
    float, typer.Option(min=0.001, help="Of a visit; half of it up to 256 tokens.")
]
_Budget = Annotated[float, typer.Option(help="No further size is begun after so many seconds.")]
_Tables = Annotated[
    Path | None,
    typer.Option(help="Directory of the dispatch tables; by default the package's."),
]
_Add = Annotated[
    bool, typer.Option(help="Keep rows of earlier runs that this one does not measure.")
]
_Pictures = Annotated[
    bool, typer.Option(help="Draw the results files as PNGs beside them; measure nothing.")
]
_Commit = Annotated[str | None, typer.Option(help="Commit to record where there is no checkout.")]

bench = typer.Typer(help="Benchmarks; their results files are what the README shows.")


@bench.command("service")
def bench_service(
    results: Annotated[
        Path, typer.Option(help="Directory for <gpu>-service.csv and .json.")
    ] = Path("service/bench/results"),
    peers: Annotated[
        bool,
        typer.Option(
            help="Compare with LitServe, BentoML and Ray Serve instead, "
            "as far as they are installed (tilemlp[bench-peers])."
        ),
    ] = False,
    models: Annotated[
        str,
        typer.Option(help="For --peers, with commas: echo, which computes nothing, or presets."),
    ] = "echo",
    cases: Annotated[
        str | None,
        typer.Option(
            help="For --peers: rows x clients, with commas, such as 1x1,64x32, or "
            "qwen2.5-7b:2048x16 for one of the models; by default what suits the cores."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="For --peers: of this service, which is measured with each, such as 0,4; "
            "by default what suits the cores."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each, medians count.")] = 3,
    duration_s: Annotated[
        float, typer.Option(min=0.1, help="Of a round; without --peers, about.")
    ] = 1.0,
    warm_up_s: Annotated[
        float, typer.Option(min=0, help="For --peers: under load, before each round.")
    ] = 0.5,
    start_timeout_s: Annotated[
        float, typer.Option(help="For --peers: longest time for a server to come up.")
    ] = 180.0,
    budget_s: Annotated[
        float, typer.Option(help="For --peers: no further server is started after so many seconds.")
    ] = float("inf"),
    servers: Annotated[
        str | None,
        typer.Option(
            help="For --peers: which, with commas, of echo, tilemlp, tilemlp-shm, litserve, "
            "bentoml and rayserve; by default all."
        ),
    ] = None,
    add: Annotated[
        bool,
        typer.Option(help="For --peers: keep rows of earlier runs that this one does not measure."),
    ] = False,
    commit: _Commit = None,
) -> None:
    """Measure what the service adds to a bare ASGI echo, with a stub for the engine.

    Or, with --peers, compare it with other servers.
    """
    from service.bench.kernel_options import recorded_command
    from service.bench.service import ServiceOptions, run_service_bench

    command = recorded_command(sys.argv[1:])
    with _err.status("starting servers") as status:
        if peers:
            from service.bench.peers.compare import run_peer_bench
            from service.bench.peers.options import PeerOptions, parse_cases, parse_workers

            options = PeerOptions(
                models=tuple(models.split(",")),
                cases=parse_cases(cases),
                workers=parse_workers(workers),
                rounds=rounds,
                duration_s=duration_s,
                warm_up_s=warm_up_s,
                start_timeout_s=start_timeout_s,
                budget_s=budget_s,
                only=() if servers is None else tuple(servers.split(",")),
                add=add,
                commit=commit,
            )
            lines = run_peer_bench(options, results, command, status.update)
        else:
            lines = run_service_bench(
                ServiceOptions(results, command, rounds, duration_s, commit), status.update
            )
    for line in lines:
        typer.echo(line)


def _run_gpu_bench(
    run: Callable[[_T, Callable[[int, int, str], None]], list[str]], options: _T
) -> None:
    """Run with a progress bar, then print the lines that come back."""
    with Progress(console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        lines = run(
            options,
            lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
    for line in lines:
        typer.echo(line)


@bench.command("kernels")
def bench_kernels(
    models: _Shapes = "0.5b,1.5b,3b,7b,14b,32b,72b",
    tokens: _Sizes = "1,16,64,256,1024,2048,4096,8192",
    variants: Annotated[
        str, typer.Option(help="What to time; quack is left out where it is not installed.")
    ] = "eager,compile,merged,gemm,quack,kernel1,kernel2,fused",
    rounds: _Visits = 3,
    settle_s: _Settle = 0.04,
    measure_s: _Measure = 0.12,
    budget_s: _Budget = float("inf"),
    results: Annotated[
        Path, typer.Option(help="Directory for <gpu>-kernels.csv and .json.")
    ] = Path("service/bench/results"),
    tables: _Tables = None,
    add: _Add = False,
    tune: Annotated[
        bool, typer.Option(help="Search the best kernel of each size for the dispatch table.")
    ] = False,
    plot: _Pictures = False,
    commit: _Commit = None,
) -> None:
    """Measure the fused kernels against eager, torch.compile, cuBLAS and QuACK."""
    if plot:
        from service.bench.kernel_plot import plot_directory

        for picture in plot_directory(results):
            typer.echo(picture)
        return
    from service.bench.kernel_options import (
        KernelBenchOptions,
        parse_models,
        parse_tokens,
        recorded_command,
    )
    from service.bench.kernel_tune import run_tune
    from service.bench.kernel_variants import parse_variants
    from service.bench.kernels import run_kernel_bench
    from service.kernels.timing import Steadiness

    options = KernelBenchOptions(
        models=parse_models(models),
        tokens=parse_tokens(tokens),
        variants=parse_variants(variants),
        steadiness=Steadiness(settle_s, measure_s, rounds),
        budget_s=budget_s,
        results=results,
        tables=tables,
        add=add,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_tune if tune else run_kernel_bench, options)


@bench.command("decode")
def bench_decode(
    models: _Shapes = "0.5b,1.5b,3b,7b,14b,32b,72b",
    tokens: _Sizes = "1,4,8,16,32,64,128",
    rounds: _Visits = 3,
    settle_s: _Settle = 0.04,
    measure_s: _Measure = 0.12,
    budget_s: _Budget = float("inf"),
    results: Annotated[Path, typer.Option(help="Directory for <gpu>-decode.csv and .json.")] = Path(
        "service/bench/results"
    ),
    tables: _Tables = None,
    add: _Add = False,
    commit: _Commit = None,
) -> None:
    """Measure gate/up, down and the whole MLP of few tokens against the memory's read rate."""
    from service.bench.decode import DecodeOptions, run_decode_bench
    from service.bench.kernel_options import parse_models, parse_tokens, recorded_command
    from service.kernels.timing import Steadiness

    options = DecodeOptions(
        models=parse_models(models),
        tokens=parse_tokens(tokens),
        steadiness=Steadiness(settle_s, measure_s, rounds),
        budget_s=budget_s,
        results=results,
        tables=tables,
        add=add,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_decode_bench, options)


@bench.command("engine")
def bench_engine(
    models: _Shapes = "0.5b,7b",
    devices: Annotated[
        str | None, typer.Option(help="GPUs that get a replica each, such as 0,1.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Of each case under load.")] = 1.0,
    results: Annotated[Path, typer.Option(help="Directory for <gpu>-engine.csv and .json.")] = Path(
        "service/bench/results"
    ),
    commit: _Commit = None,
) -> None:
    """Measure the fused engine alone, without HTTP: how busy it keeps the GPU."""
    from service.bench.engine import EngineBenchOptions, run_engine_bench
    from service.bench.kernel_options import parse_models, recorded_command

    options = EngineBenchOptions(
        models=parse_models(models),
        devices=() if devices is None else parse_devices(devices),
        seconds=seconds,
        results=results,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_engine_bench, options)


@bench.command("budget")
def bench_budget(
    models: Annotated[
        str, typer.Option(help="Presets whose shapes to serve, with commas.")
    ] = "0.5b,7b",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each load.")] = 3.0,
    results: Annotated[Path, typer.Option(help="Directory for <gpu>-budget.csv and .json.")] = Path(
        "service/bench/results"
    ),
    plot: _Pictures = False,
    commit: _Commit = None,
) -> None:
    """Measure where a request's time goes in the service under load."""
    if plot:
        from service.bench.budget_plot import plot_budget

        for picture in plot_budget(results):
            typer.echo(picture)
        return
    from service.bench.budget import BudgetOptions, run_budget_bench
    from service.bench.kernel_options import parse_models, recorded_command

    options = BudgetOptions(
        models=parse_models(models),
        seconds=seconds,
        results=results,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_budget_bench, options)


@bench.command("soak")
def bench_soak(
    model: Annotated[str, typer.Option(help="Preset whose shape to serve.")] = "0.5b",
    seconds: Annotated[float, typer.Option(min=60, help="In all, of ten windows.")] = 600.0,
    results: Annotated[Path, typer.Option(help="Directory for <gpu>-soak.json.")] = Path(
        "service/bench/results"
    ),
    commit: _Commit = None,
) -> None:
    """Keep the service under full load: errors, memory and latency, window by window."""
    from service.bench.kernel_options import parse_models, recorded_command
    from service.bench.soak import SoakOptions, run_soak

    options = SoakOptions(
        model=parse_models(model)[0],
        seconds=seconds,
        results=results,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_soak, options)


@bench.command("paper")
def bench_paper(
    models: Annotated[
        str | None, typer.Option(help="Presets, with commas; by default the paper's five.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Batch sizes, with commas; by default the paper's four.")
    ] = None,
    compile_: Annotated[
        str,
        typer.Option("--compile", help="Sizes for torch.compile's modes, the most wanted first."),
    ] = "0.5b:2048,7b:2048,0.5b:256,72b:2048",
    rounds: _Visits = 2,
    settle_s: _Settle = 0.04,
    measure_s: _Measure = 0.12,
    budget_s: Annotated[
        float, typer.Option(help="Nothing further is begun after so many seconds.")
    ] = 140.0,
    results: Annotated[
        Path, typer.Option(help="Directory of <gpu>-kernels.csv, for <gpu>-paper.json.")
    ] = Path("service/bench/results"),
    tables: _Tables = None,
    docs: Annotated[Path, typer.Option(help="Directory for paper.md and its pictures.")] = Path(
        "docs"
    ),
    render: Annotated[
        bool, typer.Option(help="Write paper.md out of the results files; measure nothing.")
    ] = False,
    commit: _Commit = None,
) -> None:
    """Repeat the paper's evaluation, as far as `bench kernels` has not, and write it up."""
    if render:
        from service.bench.paper_render import write_page

        for path in write_page(results, tables, docs):
            typer.echo(path)
        return
    from service.bench.kernel_options import parse_models, parse_tokens, recorded_command
    from service.bench.kernel_problem import Size
    from service.bench.paper import run_paper_bench
    from service.bench.paper_options import MODELS, TOKENS, PaperOptions, parse_sizes
    from service.kernels.timing import Steadiness

    options = PaperOptions(
        sizes=tuple(
            Size(model, number)
            for model in (parse_models(models) if models else MODELS)
            for number in (parse_tokens(tokens) if tokens else TOKENS)
        ),
        compile_sizes=parse_sizes(compile_),
        steadiness=Steadiness(settle_s, measure_s, rounds),
        budget_s=budget_s,
        results=results,
        tables=tables,
        command=recorded_command(sys.argv[1:]),
        commit=commit,
    )
    _run_gpu_bench(run_paper_bench, options)
