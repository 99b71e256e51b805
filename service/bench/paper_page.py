"""`docs/paper.md`: the paper's claims, tables and figures out of results files, nothing typed."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from service.bench.markdown import describe_run
from service.bench.paper_evidence import Evidence, read_evidence, speedup, winner
from service.bench.paper_options import MODELS, PAPER_SIZES, TOKENS
from service.bench.paper_tables import (
    claims_table,
    compile_table,
    configurations_table,
    intensity_table,
    mismatch_table,
    models_table,
    parts_table,
)
from service.errors import ConfigError
from service.kernels.dispatch_table import TABLES

_SET = fill(
    f"The paper's set is {len(PAPER_SIZES)} configurations of Qwen2.5 from 0.5B to 72B. Which ones "
    f"is not known here; taken are {', '.join(MODELS)} with {', '.join(map(str, TOKENS))} tokens: "
    "the family's ends and three sizes between them, and batches on both sides of the 2048 tokens "
    "from which the paper uses Kernel-1, none above 4096, where the byte model gives on 0.5B the "
    "paper's highest increase of arithmetic intensity. Beyond them stand all sizes of "
    "the results file.",
    100,
)
_INTRODUCTION = f"""\
# The paper's evaluation, repeated

"Tile-Level Activation Overlap for Efficient LLM Inference" (Jangda, Sorensen, Burckhardt, Ye, Li,
Gupta, 2026) measures its two kernels on an H100. This page holds its claims against results files
of this repository. `tilemlp bench paper --render` wrote all of it, verdicts and reasons included;
`tilemlp bench kernels` and `tilemlp bench paper` measure. Where a file lacks something, it says
"not measured".

{_SET}
"""

_BYTES = """\
The byte model counts 2 bytes an element. Fused: x [M, K], the weights [2N, K] and the result
[M, N], each once. Unfused, as the paper counts: gate and up written and read back besides, 4 more
passes over [M, N]. The ridge is the GEMM rate that the latest run reached over its read rate.
"""

_EFFICIENCY = """\
Times in microseconds of gate, up and activation, without down_proj. Ours is the kernel that
dispatch chooses. Of peak: FLOP/s of ours over the data sheet's dense bf16 peak. Efficiency: the
measured speed-up over eager divided by the one that the saved bytes predict, where prediction takes
from eager's time the saved bytes over the run's read rate; eager's saved passes over [M, N] are 6,
since silu is a kernel of its own. Against merged: the same against one cuBLAS GEMM on [2N, K] and
one elementwise kernel, with 4 passes saved. 1 is what the bytes say, above it fusion gained more.
"""

_SHARE = """\
Microseconds of each of eager's kernels, timed apart in the steady state. The share is silu and
product over the sum of all five; the last column holds that sum against the whole MLP run in one
piece, where the intermediates are at times still in the L2 cache.
"""

_COMPILE = """\
Modes of torch.compile on `silu(x @ Wgateᵀ) * (x @ Wupᵀ)`, all replayed from CUDA graphs as
everything else here. max-autotune compiles for long, so it was run at a few sizes only; the default
mode at all sizes is in the table of the 20.
"""

_MISMATCH = """\
x has deviation 1. Shares of the elements of `silu(gate) · up` that are more than 1 % away from
FP64. FP32 rounded once is torch in FP32: what accumulating in FP32 costs whoever does it.
"""


_PICTURES = {
    "speedup": "Speed-up over eager and over torch.compile, the paper's 20",
    "roofline": "Roofline: where fusion moves each size",
    "peak": "Share of the peak, and fusion efficiency",
    "wins": "Kernel-1's time over Kernel-2's",
    "share": "Where the time of the unfused MLP goes",
    "mismatch": "Elements off by more than 1 % by the scale of the weights",
}


def pictures_of(evidence: Evidence) -> list[str]:
    """Names of the pictures that there is something to draw in."""
    timed = any(speedup(row) for row in evidence.paper_rows)
    paper = evidence.paper
    there = {
        "speedup": timed,
        "roofline": timed,
        "peak": timed,
        "wins": any(winner(row) for row in evidence.rows),
        "share": paper is not None and bool(paper.parts),
        "mismatch": paper is not None and bool(paper.mismatch),
    }
    return [name for name in _PICTURES if there[name]]


def render_page(results: Path, tables: Path | None) -> str:
    """The page's text for all GPUs that there are results of.

    Args:
        results: Directory of the results files.
        tables: Of the dispatch tables; None for the package's.

    Raises:
        ConfigError: there is no kernels results file, or a file is not one that a run wrote.
    """
    sections = [_of_gpu(evidence) for evidence in all_evidence(results, tables)]
    return "\n".join([_INTRODUCTION, *sections])


def picture_name(evidence: Evidence, name: str) -> str:
    """Of a picture, beside the page."""
    return f"paper-{evidence.gpu}-{name}.png"


def all_evidence(results: Path, tables: Path | None) -> list[Evidence]:
    """What there is on every GPU with a kernels results file.

    Raises:
        ConfigError: there is none, or a file is not one that a run wrote.
    """
    paths = sorted(results.glob("*-kernels.csv"))
    if not paths:
        raise ConfigError(f"results: must hold a file *-kernels.csv, {results} holds none")
    slugs = [path.stem.removesuffix("-kernels") for path in paths]
    return [read_evidence(results, tables or TABLES, slug) for slug in slugs]


def _of_gpu(evidence: Evidence) -> str:
    paper = evidence.paper
    left_out = ", ".join(paper.left_out) if paper and paper.left_out else ""
    parts = [
        f"## {evidence.runs[-1]['gpu']}\n",
        claims_table(evidence),
        "\n### The 20 configurations\n",
        _EFFICIENCY,
        configurations_table(evidence),
        _picture(evidence, "speedup"),
        _picture(evidence, "peak"),
        "\n### All sizes, and which kernel wins\n",
        "Means are geometric. The last two columns count entries of the dispatch table.\n",
        models_table(evidence),
        _picture(evidence, "wins"),
        "\n### Bytes and roofline\n",
        _BYTES,
        intensity_table(evidence),
        _picture(evidence, "roofline"),
        "\n### Share of activation and intermediates\n",
        _SHARE,
        parts_table(evidence),
        _picture(evidence, "share"),
        "\n### torch.compile\n",
        _COMPILE,
        compile_table(evidence),
        "\n### Accuracy by the scale of the weights\n",
        _MISMATCH,
        mismatch_table(evidence),
        _picture(evidence, "mismatch"),
        "\n### Conditions\n",
        "\n\n".join(describe_run(run) for run in evidence.runs),
        "" if paper is None else f"\n{describe_run(paper.about)}",
        f"\nLeft out, being over the time or refused by torch: {left_out}." if left_out else "",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _picture(evidence: Evidence, name: str) -> str:
    """Empty where there is nothing to draw."""
    if name not in pictures_of(evidence):
        return ""
    return f"\n![{_PICTURES[name]}]({picture_name(evidence, name)})"
