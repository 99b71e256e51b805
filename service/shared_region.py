"""One stretch of a POSIX shared memory object that a client shares: opened, read, written, pinned.

The processor never touches a client's memory through a mapping: whoever created the object can
truncate it at any time, and a load or store behind its end is a SIGBUS, which ends the process.
Bytes are moved by preadv and pwrite, which then come back short. A mapping is made only for an
engine that pins it, because pinned pages stay however the object changes, and the device copies
from and to them without faults.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import stat
from typing import Protocol

from service.engine.base import Buffer, DType, PinsHostMemory
from service.errors import InvalidRequest
from service.wire.window import Window

# Where shm_open keeps its objects on Linux.
_DIRECTORY = "/dev/shm"
_LONGEST_NAME = 255


class Region:
    """One registered stretch of an object; its file descriptor is open while anybody uses it.

    Attributes:
        name: What requests call it.
        key: Name of the object.
        offset: First byte in the object.
        nbytes: Length.
        identity: With device and inode, to tell whether two regions lie in the same object.
    """

    def __init__(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open the object.

        Raises:
            InvalidRequest: the key is no name of an object, or the object cannot be used.
        """
        self.name = name
        self.key = key
        self.offset = offset
        self.nbytes = nbytes
        self._fd, found = _open(key)
        self.identity = ("file", found.st_dev, found.st_ino)
        self._users = 1
        self._pinned: memoryview | None = None
        self._pinner: PinsHostMemory | None = None
        try:
            self._check_size(0, nbytes)
        except InvalidRequest:
            os.close(self._fd)
            raise

    def pin(self, pinner: PinsHostMemory) -> None:
        """Let the device copy from and to it; slow, and without effect where it cannot be."""
        start = self.offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(self._fd, start + self.nbytes, offset=self.offset - start)
        except (OSError, ValueError):  # truncated since it was opened; use will say so
            return
        view = memoryview(mapped)[start:]
        if pinner.pin(view):
            self._pinned, self._pinner = view, pinner

    def direct(self, window: Window, dtype: DType) -> memoryview | None:
        """The window's memory where the device alone copies from or to it, else None.

        Raises:
            InvalidRequest: the object has been truncated.
        """
        if (
            self._pinned is None
            or self._pinner is None
            or dtype is not self._pinner.model.dtype
            or window.nbytes < self._pinner.direct_bytes
        ):
            return None
        self._check_size(window.offset, window.nbytes)
        return self._pinned[window.offset : window.offset + window.nbytes]

    def read(self, offset: int, target: memoryview) -> None:
        """Copy the bytes from offset on into all of target.

        Raises:
            InvalidRequest: the object has been truncated.
        """
        done = 0
        while done < len(target):
            got = os.preadv(self._fd, [target[done:]], self.offset + offset + done)
            if not got:
                self._check_size(offset, len(target))
                raise self._truncated(offset + done)
            done += got

    def write(self, offset: int, source: Buffer) -> None:
        """Copy all of source to the bytes from offset on.

        Raises:
            InvalidRequest: the object has been truncated, or there is no memory left for it.
        """
        data = memoryview(source).cast("B")
        # Truncated between here and the copy, the object grows again: the client's own affair.
        self._check_size(offset, len(data))
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self.offset + offset + done)
        except OSError as error:
            raise InvalidRequest(
                f"shared memory region {self.name!r}: must be writable, is not: {error.strerror}"
            ) from None

    def acquire(self) -> Region:
        """Keep it open until `release`, whether it is still registered or not."""
        self._users += 1
        return self

    def release(self) -> None:
        """Undo one `acquire`, or the registration."""
        self._users -= 1
        if self._users:
            return
        if self._pinned is None:
            os.close(self._fd)
        else:
            # Takes as long as pinning did.
            asyncio.get_running_loop().run_in_executor(None, self._close_pinned)

    def _close_pinned(self) -> None:
        assert self._pinner is not None
        assert self._pinned is not None
        self._pinner.unpin(self._pinned)
        # The mapping goes with the last view of it.
        self._pinned = None
        os.close(self._fd)

    def _check_size(self, offset: int, nbytes: int) -> None:
        size = os.fstat(self._fd).st_size
        if self.offset + offset + nbytes > size:
            raise InvalidRequest(
                f"shared memory region {self.name!r}: must lie within its object, ends at byte "
                f"{self.offset + offset + nbytes} of {size}"
            )

    def _truncated(self, at: int) -> InvalidRequest:
        return InvalidRequest(
            f"shared memory region {self.name!r}: must keep its size while it is read, ended at "
            f"byte {at}"
        )


class Stretch(Protocol):
    """A region as far as `overlap` knows it, of a shared memory object or of a GPU's memory."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Equal where two lie in the same object."""

    @property
    def offset(self) -> int:
        """First byte in the object."""


def overlap(first: tuple[Stretch, Window], second: tuple[Stretch, Window]) -> bool:
    """Whether two windows have bytes of an object in common."""
    (a, a_window), (b, b_window) = first, second
    a_start, b_start = a.offset + a_window.offset, b.offset + b_window.offset
    return (
        a.identity == b.identity
        and a_start < b_start + b_window.nbytes
        and b_start < a_start + a_window.nbytes
    )


def _open(key: str) -> tuple[int, os.stat_result]:
    """Open the object that shm_open knows by this key, and nothing else."""
    # As in the C library, leading slashes do not count.
    name = key.lstrip("/")
    if not name or "/" in name or "\0" in name or name in (".", "..") or len(name) > _LONGEST_NAME:
        raise InvalidRequest(
            f"key: must be the name of a POSIX shared memory object, such as '/rows', is "
            f"{key[:80]!r}"
        )
    # Without O_NONBLOCK, opening what turns out to be a device could wait.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(os.path.join(_DIRECTORY, name), flags)
    except (OSError, UnicodeEncodeError) as error:
        number = error.errno if isinstance(error, OSError) else errno.EINVAL
        assert number is not None
        raise InvalidRequest(
            f"key: must name an object that the service may open, {key[:80]!r} is not: "
            f"{os.strerror(number)}"
        ) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise InvalidRequest(f"key: must name a shared memory object, {key[:80]!r} is another file")
    return fd, found
