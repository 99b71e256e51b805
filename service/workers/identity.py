"""Which code a process runs, as far as a front end and the engine's process have to agree on it.

A front end is started from the code that is on disk by then. Where that was replaced under a
running service, records and shared memory would be misread, so that it has to be the same.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from service import __version__

# What says how records, shared memory and all that is told at the start are laid out.
_AGREED = (
    "workers/*.py",
    "batching/health.py",
    "config.py",
    "counts.py",
    "engine/base.py",
    "errors.py",
    "wire/window.py",
)


def identity_of(package: Path) -> str:
    """Version and digest of the code in a folder."""
    digest = sha256()
    for pattern in _AGREED:
        for path in sorted(package.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}-{digest.hexdigest()[:12]}"


# As it is when the process starts.
IDENTITY = identity_of(Path(__file__).parents[1])
