"""Run every kernel instance under compute-sanitizer; non-zero exit on a finding.

    python -m tests.csrc.sanitize [build/csrc/libswiglu.so] [--tools memcheck,racecheck,synccheck]

A small ragged shape of every configuration, dtype and activation, of gate/up and of down, once with
and once without SWIGLU_WEIGHTS_CONSTANT, two launches in a row. Only our kernels are instrumented;
inputs are drawn and results are checked on the CPU. The tools run side by side.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

LIBRARY = "build/csrc/libswiglu.so"
TOOLS = "memcheck,racecheck,synccheck"
SWITCHES = ["--kernel-regex", "kns=swiglu", "--error-exitcode", "9"]


def run_all(path: str) -> int:
    """The program that is watched: returns the number of wrong results."""
    import torch  # noqa: PLC0415 - the parent needs no torch

    from tests.csrc import abi  # noqa: PLC0415
    from tests.csrc.cases import ACTIVATIONS, say  # noqa: PLC0415
    from tests.csrc.gpu_run import Swiglu  # noqa: PLC0415

    swiglu = Swiglu(path)
    wrong = launches = 0
    for config in swiglu.configs:
        types = [(torch.bfloat16, abi.SILU)]
        if config.all_types:
            types = [(d, a) for d in (torch.bfloat16, torch.float16) for a in ACTIVATIONS]
        m, n, k = config.tile_m * config.cluster_m + 9, config.tile_n * config.cluster_n + 24, 328
        for dtype, activation in types:
            x, gate_up = torch.randn(m, k).to(dtype), (torch.randn(2 * n, k) * 0.05).to(dtype)
            both = (x.float() @ gate_up.float().T).split(n, dim=1)
            wanted = ACTIVATIONS[activation](both[0]) * both[1]
            weights = swiglu.weights(config, gate_up).cuda()
            for flags in (0, abi.WEIGHTS_CONSTANT):
                on_gpu, out = x.cuda(), torch.empty(m, n, dtype=dtype, device="cuda")
                options = {"config": config.id, "activation": activation, "flags": flags}
                for _ in range(2):
                    swiglu(on_gpu, weights, out, **options)
                wrong += not torch.allclose(out.cpu().float(), wanted, rtol=0.01, atol=0.002)
                launches += 2
    wrong += run_down(swiglu)
    say(f"{launches} launches of gate/up, all of down, {wrong} wrong results")
    return wrong


def run_down(swiglu) -> int:
    """The same for every configuration of the down projection."""
    import torch  # noqa: PLC0415

    from tests.csrc import abi  # noqa: PLC0415

    wrong = 0
    for config in swiglu.down_configs:
        m, n, k = config.tile_m + 9, config.tile_n + 24, 840
        for dtype in (torch.bfloat16, torch.float16) if config.all_types else (torch.bfloat16,):
            x, weight = torch.randn(m, k).to(dtype), (torch.randn(n, k) * 0.05).to(dtype)
            wanted, on_gpu, weights = x.float() @ weight.float().T, x.cuda(), weight.cuda()
            for flags in (0, abi.WEIGHTS_CONSTANT):
                out = torch.empty(m, n, dtype=dtype, device="cuda")
                for _ in range(2):
                    swiglu.down(on_gpu, weights, out, config=config.id, flags=flags)
                wrong += not torch.allclose(out.cpu().float(), wanted, rtol=0.01, atol=0.002)
    return wrong


def verdict(output: str, status: int) -> str:
    """What is wrong with a tool's run; "" for a clean one."""
    if "Device not supported" in output:
        return "the tool does not support this machine"
    # racecheck sums up in its own words.
    clean = re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", output)
    if status or not clean or ", 0 wrong results" not in output:
        return output[-4000:]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?", default=LIBRARY)
    parser.add_argument("--tools", default=TOOLS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watched:
        return run_all(options.library)
    path = str(Path(options.library).resolve())
    me = [sys.executable, "-m", "tests.csrc.sanitize", "--watched", path]
    runs = {
        tool: subprocess.Popen(
            ["compute-sanitizer", "--tool", tool, *SWITCHES, *me],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for tool in options.tools.split(",")
    }
    failed = 0
    for tool, run in runs.items():
        output, _ = run.communicate()
        said = verdict(output, run.returncode)
        failed += bool(said)
        last = output.strip().splitlines()[-1]
        sys.stdout.write(f"{tool}: {said or 'clean: ' + last}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
