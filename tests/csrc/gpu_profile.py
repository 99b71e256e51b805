"""How busy the tensor cores are and what is moved, by Nsight Compute, for large problems.

    python -m tests.csrc.gpu_profile build/csrc/libswiglu.so [--models 1.5B,7B,72B]
        [--tokens 2048,4096,8192] [--configs auto,k1_128x128_c2x1]

One launch of each size and configuration (auto is what the library chooses) on random normal data,
clocks left as they are. Nsight Compute serialises kernels and flushes caches, so this says nothing
of times. Of the reasons for which warps wait the largest three are given, in warps a cycle.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
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


STALLS = re.compile(r"smsp__average_warps_issue_stalled_(?!.*not_issued)\w+_per_issue_active$")
STALLS_SHOWN = 3


def run_all(path: str, models: str, tokens: str, configs: str) -> None:
    """The program that is profiled."""
    import torch  # noqa: PLC0415 - the parent needs no torch

    from tests.csrc import abi  # noqa: PLC0415
    from tests.csrc.cases import QWEN  # noqa: PLC0415
    from tests.csrc.gpu_run import Swiglu  # noqa: PLC0415

    swiglu = Swiglu(path)
    for model in models.split(","):
        k, n = QWEN[model]
        gate_up = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16) * 0.02
        for m in map(int, tokens.split(",")):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            for name in configs.split(","):
                config = abi.CONFIG_AUTO if name == "auto" else swiglu.by_name[name].id
                swiglu(x, gate_up, out, config=config)
                torch.cuda.synchronize()


def known_metrics() -> list[str]:
    """The first known spelling of each metric on the GPU at hand."""
    listing = subprocess.run(["ncu", "--query-metrics"], check=True, capture_output=True, text=True)
    known = {line.split()[0] for line in listing.stdout.splitlines() if line.strip()}
    named = [
        next(name for name in names if name.split(".")[0] in known)
        for names in METRICS.values()
        if any(name.split(".")[0] in known for name in names)
    ]
    return [*named, *(f"{name}.ratio" for name in sorted(known) if STALLS.match(name))]


def without_small_stalls(values: dict[str, str]) -> dict[str, str]:
    """Keep the largest stall reasons only, by short names."""
    stalls = {
        name.split("stalled_")[1].split("_per_issue")[0]: float(value.split()[0])
        for name, value in values.items()
        if "stalled_" in name
    }
    largest = sorted(stalls, key=stalls.__getitem__, reverse=True)[:STALLS_SHOWN]
    kept = {name: value for name, value in values.items() if "stalled_" not in name}
    return kept | {f"stall {name}": f"{stalls[name]:.2f}" for name in largest}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--models", default="1.5B,7B,72B")
    parser.add_argument("--tokens", default="2048,4096,8192")
    parser.add_argument("--configs", default="auto")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profiled:
        run_all(options.library, options.models, options.tokens, options.configs)
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
    sizes = [
        (model, tokens, config)
        for model in options.models.split(",")
        for tokens in options.tokens.split(",")
        for config in options.configs.split(",")
    ]
    if done.returncode or len(seen) != len(sizes):
        sys.stdout.write(done.stdout[-3000:] + done.stderr[-2000:])
        return 1
    for size, values in zip(sizes, seen.values(), strict=True):
        sys.stdout.write(f"{' '.join(size)}: {without_small_stalls(values)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
