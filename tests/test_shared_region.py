"""One stretch of a client's memory: what may be opened, and that it is read without a mapping."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.errors import InvalidRequest
from service.shared_region import Region, overlap
from service.wire.window import Window
from tests.shared_objects import DIRECTORY, SharedObject, open_files, shared_object

SIZE = 10_000


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(SIZE) as made:
        yield made


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_region_is_a_stretch_of_an_object(memory: SharedObject, slashes: str) -> None:
    memory.write(130, b"abcdef")
    region = Region("r", slashes + memory.name, 100, 50)
    target = memoryview(bytearray(6))
    region.read(30, target)
    assert bytes(target) == b"abcdef"
    region.write(44, b"123456")
    assert memory.read(144, 6) == b"123456"
    region.release()


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1])
def test_large_pieces_are_copied_whole(size: int) -> None:
    data = os.urandom(size)
    with shared_object(size) as made:
        region = Region("r", made.key, 0, size)
        region.write(0, data)
        target = memoryview(bytearray(size))
        region.read(0, target)
        region.release()
    assert target == data


@pytest.mark.parametrize(
    "key",
    ["", "/", "..", "/..", ".", "/../x", "a/b", "/a/../../etc/passwd", "a\0b", "x" * 256, "\ud800"],
)
def test_a_key_is_one_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="key: must"):
        Region("r", key, 0, 1)


def test_only_objects_that_are_there_can_be_registered(memory: SharedObject) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        Region("r", memory.key + "x", 0, 1)


def test_links_are_not_followed(memory: SharedObject, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 100)
    link = DIRECTORY / f"{memory.name}-link"
    link.symlink_to(secret)
    try:
        with pytest.raises(InvalidRequest, match="symbolic links"):
            Region("r", link.name, 0, 1)
    finally:
        link.unlink()


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket"])
def test_other_files_are_refused_at_once(memory: SharedObject, kind: str) -> None:
    before = open_files()
    path = DIRECTORY / f"{memory.name}-{kind}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            listener.bind(str(path))
        with pytest.raises(InvalidRequest, match="key: must name"):
            Region("r", path.name, 0, 1)
    finally:
        listener.close()
        path.rmdir() if kind == "directory" else path.unlink()
    assert open_files() <= before  # others' may be closed meanwhile


def test_a_truncated_object_is_refused_and_not_extended(memory: SharedObject) -> None:
    region = Region("r", memory.key, 0, SIZE)
    memory.truncate(500)
    with pytest.raises(InvalidRequest, match=f"ends at byte {SIZE} of 500"):
        region.read(0, memoryview(bytearray(SIZE)))
    with pytest.raises(InvalidRequest, match="must lie within its object"):
        region.write(400, bytes(101))
    assert memory.path.stat().st_size == 500
    region.write(400, bytes(100))
    region.release()


def test_truncation_in_the_middle_of_a_read_is_an_error() -> None:
    """However the client hurries: it gets an answer or a sentence, and the process lives."""
    size = 1 << 20
    with shared_object(size) as made:
        region = Region("r", made.key, 0, size)
        stop = threading.Event()

        def flicker() -> None:
            while not stop.is_set():
                made.truncate(0)
                made.truncate(size)

        thread = threading.Thread(target=flicker)
        thread.start()
        ends = set()
        buffer = memoryview(bytearray(size))
        for _ in range(300):
            for call in (lambda: region.read(0, buffer), lambda: region.write(0, buffer)):
                try:
                    call()
                    ends.add("done")
                except InvalidRequest:  # noqa: PERF203 - one way to end of two
                    ends.add("refused")
        stop.set()
        thread.join()
        region.release()
    assert "refused" in ends


def test_overlaps_are_those_of_the_object(memory: SharedObject) -> None:
    a = Region("a", memory.key, 0, 100)
    b = Region("b", memory.key, 50, 100)
    assert overlap((a, Window("a", 40, 20)), (b, Window("b", 9, 5)))
    assert not overlap((a, Window("a", 40, 20)), (b, Window("b", 10, 5)))
    with shared_object(SIZE) as other:
        c = Region("c", other.key, 0, 100)
        assert not overlap((a, Window("a", 0, 100)), (c, Window("c", 0, 100)))
        c.release()
    a.release()
    b.release()
