"""How busy the tensor cores are and what is moved, by Nsight Compute, for large problems.

    python -m tests.csrc.gpu_profile build/csrc/libswiglu.so [--models 1.5B,7B,72B]
        [--tokens 2048,4096,8192]

One launch of each size, what the library chooses, on random normal data, clocks left as they are.
Nsight Compute serialises kernels and flushes caches, so this says nothing of times.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys

METRICS = {
    "tensor pipe active, % of elapsed cycles": (
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_elapsed",
    ),
    "bytes read from device memory": ("dram__bytes_read.sum",),
    "bytes written to device memory": ("dram__bytes_write.sum",),
    "bytes asked of L2": ("lts__t_bytes.sum",),
    "elapsed cycles": ("sm__cycles_elapsed.max",),
}


def run_all(path: str, models: str, tokens: str) -> None:
    """The program that is profiled."""
    import torch  # noqa: PLC0415 - the parent needs no torch

    from tests.csrc.cases import QWEN  # noqa: PLC0415
    from tests.csrc.gpu_run import Swiglu  # noqa: PLC0415

    swiglu = Swiglu(path)
    for model in models.split(","):
        k, n = QWEN[model]
        gate_up = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16) * 0.02
        for m in map(int, tokens.split(",")):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            swiglu(x, gate_up, torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
            torch.cuda.synchronize()


def known_metrics() -> list[str]:
    """The first known spelling of each metric on the GPU at hand."""
    listing = subprocess.run(["ncu", "--query-metrics"], check=True, capture_output=True, text=True)
    known = {line.split()[0] for line in listing.stdout.splitlines() if line.strip()}
    return [
        next(name for name in names if name.split(".")[0] in known)
        for names in METRICS.values()
        if any(name.split(".")[0] in known for name in names)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--models", default="1.5B,7B,72B")
    parser.add_argument("--tokens", default="2048,4096,8192")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profiled:
        run_all(options.library, options.models, options.tokens)
        return 0
    metrics = known_metrics()
    me = [sys.executable, "-m", "tests.csrc.gpu_profile", *sys.argv[1:], "--profiled"]
    ncu = ["ncu", "--csv", "--clock-control", "none", "--kernel-name", "regex:device_kernel"]
    done = subprocess.run(
        [*ncu, "--metrics", ",".join(metrics), *me], check=False, capture_output=True, text=True
    )
    table = "\n".join(line for line in done.stdout.splitlines() if line.startswith('"'))
    seen: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        value = f"{row['Metric Value']} {row['Metric Unit']}"
        seen.setdefault(row["ID"], {})[row["Metric Name"]] = value
    sizes = [(m, t) for m in options.models.split(",") for t in options.tokens.split(",")]
    if done.returncode or len(seen) != len(sizes):
        sys.stdout.write(done.stdout[-3000:] + done.stderr[-2000:])
        return 1
    for (model, tokens), values in zip(sizes, seen.values(), strict=True):
        sys.stdout.write(f"{model} {tokens}: {values}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
