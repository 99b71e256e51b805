"""Compiler launcher: run nvcc, then refuse an object file whose kernels lost registers or call out.

CMake puts this before every CUDA compile (CMAKE_CUDA_COMPILER_LAUNCHER). Refused are

- register spills, and ptxas advisory C7512 (WGMMAs serialised for want of registers): either costs
  2 to 10 times in these kernels and nothing but the compiler's report shows it;
- a CALL in a kernel's SASS: the slow path of an accurate division or exponential in the epilogue.

Usage: nvcc_checked.py [--cuobjdump FILE] nvcc ARGUMENTS...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
SERIALISED = re.compile(r"C7512|C7510|wgmma\.mma_async instructions are serialized")
CALL = re.compile(r"\bCALL\.\S+")


def report_faults(log: str) -> list[str]:
    """Return what in ptxas's report (-Xptxas -v) must not be."""
    faults = []
    if "spill stores" not in log:
        faults.append("ptxas reported no register usage: was -Xptxas -v passed?")
    for line in log.splitlines():
        spill = SPILL.search(line)
        if (spill and spill.groups() != ("0", "0")) or SERIALISED.search(line):
            faults.append(line.strip())
    return faults


def sass_faults(cuobjdump: str, object_file: str) -> list[str]:
    """Return the CALL instructions in the object file's kernels, one line per kind and kernel."""
    command = [cuobjdump, "--dump-sass", object_file]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return [f"{cuobjdump} failed: {done.stderr.strip()}"]
    listing = done.stdout
    if "HGMMA" not in listing:
        return [f"{object_file}: no HGMMA in its SASS, so this is not the kernel that was meant"]
    faults, kernel = [], ""
    for line in listing.splitlines():
        if "Function :" in line:
            kernel = line.split("Function :")[1].strip()[:60]
        elif call := CALL.search(line):
            faults.append(f"{call[0]} in {kernel}...")
    return sorted(set(faults))


def main() -> int:
    """Run the compiler; return its exit status, or 1 where the object file is refused."""
    command = sys.argv[1:]
    cuobjdump = None
    if command[:1] == ["--cuobjdump"]:
        cuobjdump, command = command[1], command[2:]
    result = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    compiles = "-c" in command
    if result.returncode != 0 or not compiles:
        sys.stderr.write(result.stdout)
        return result.returncode
    object_file = command[command.index("-o") + 1]
    Path(object_file + ".ptxas").write_text(result.stdout)
    faults = report_faults(result.stdout)
    if cuobjdump is not None:
        faults += sass_faults(cuobjdump, object_file)
    for fault in faults:
        sys.stderr.write(f"refused {object_file}: {fault}\n")
    if faults:
        Path(object_file).unlink()
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
