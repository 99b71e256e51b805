"""POSIX shared memory objects for tests, as a client makes them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIRECTORY = Path("/dev/shm")


class SharedObject:
    """One object; read and written without a mapping, so that tests may truncate it."""

    def __init__(self, nbytes: int) -> None:
        self.name = f"tilemlp-test-{uuid.uuid4().hex}"
        self.key = f"/{self.name}"
        self.path = DIRECTORY / self.name
        self.path.write_bytes(bytes(nbytes))

    def write(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.path.read_bytes()[offset : offset + nbytes]

    def truncate(self, nbytes: int) -> None:
        os.truncate(self.path, nbytes)


@contextmanager
def shared_object(nbytes: int) -> Iterator[SharedObject]:
    """An object of zeros that is gone afterwards."""
    made = SharedObject(nbytes)
    try:
        yield made
    finally:
        made.path.unlink(missing_ok=True)


def open_files() -> int:
    """File descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
