import gzip
import random
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequest, TooLarge
from service.wire.compression import Inflation, deflate
from service.wire.media import Encoding
from tests.wire.samples import value_or_refusal

MIB = 1 << 20
REFERENCE = {
    Encoding.GZIP: (gzip.compress, gzip.decompress),
    Encoding.DEFLATE: (zlib.compress, zlib.decompress),
}


def inflate(body, encoding, max_bytes):
    """All of a body, in one step."""
    inflation = Inflation(body, encoding, max_bytes)
    assert inflation.go_on(max_bytes)
    return memoryview(inflation.grown)


both = pytest.mark.parametrize("encoding", list(Encoding))


@given(st.lists(st.binary(max_size=300), max_size=4), st.sampled_from(Encoding))
def test_round_trip(chunks, encoding):
    content = b"".join(chunks)
    packed = deflate(chunks, encoding)
    assert REFERENCE[encoding][1](packed) == content
    assert inflate(memoryview(packed), encoding, len(content)) == content


@both
@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, (1 << 18) + 1, MIB])
@pytest.mark.parametrize("compressible", [True, False])
def test_sizes_around_the_steps(encoding, size, compressible):
    content = bytes(size) if compressible else random.Random(1).randbytes(size)
    packed = REFERENCE[encoding][0](content)
    assert inflate(memoryview(packed), encoding, size) == content
    if size:
        with pytest.raises(TooLarge, match=rf"at most {size - 1} bytes .*MLP_MAX_BODY_BYTES"):
            inflate(memoryview(packed), encoding, size - 1)


@both
def test_between_steps_no_more_is_out_than_room_and_a_piece(encoding):
    content = random.Random(2).randbytes(3 * MIB)
    inflation = Inflation(memoryview(REFERENCE[encoding][0](content)), encoding, 4 * MIB)
    room, steps = 1000, 0
    while not inflation.go_on(room):
        assert room < len(inflation.grown) <= room + (1 << 18)
        room, steps = 2 * len(inflation.grown), steps + 1
    assert inflation.grown == content
    assert 2 < steps < 10


@both
def test_a_bomb_stops_at_the_cap(encoding):
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding is Encoding.GZIP else 15)
    zeros = bytes(MIB)
    bomb = b"".join([*(compressor.compress(zeros) for _ in range(256)), compressor.flush()])
    assert len(bomb) < MIB // 3
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(TooLarge):
        inflate(memoryview(bomb), encoding, 4 * MIB)
    elapsed = time.perf_counter() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The buffer grows by an eighth at a time, and the old one is alive while it is copied.
    assert peak < 10 * MIB
    assert elapsed < 2


@both
def test_truncated(encoding):
    packed = REFERENCE[encoding][0](bytes(range(256)) * 10)
    for length in (0, 1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(InvalidRequest, match="ends before"):
            inflate(memoryview(packed)[:length], encoding, MIB)


@both
def test_corrupt(encoding):
    packed = bytearray(REFERENCE[encoding][0](bytes(range(256)) * 10))
    packed[-3] ^= 1
    for body in (packed, b"not compressed at all"):
        with pytest.raises(InvalidRequest, match="must be one"):
            inflate(memoryview(body), encoding, MIB)


@both
@pytest.mark.parametrize("rest", [b"\0", b"garbage" * 40000])
def test_trailing_bytes(encoding, rest):
    packed = REFERENCE[encoding][0](b"content")
    with pytest.raises(InvalidRequest, match=f"alone, {len(rest)} bytes follow"):
        inflate(memoryview(packed + rest), encoding, MIB)


def test_a_second_gzip_member_is_refused():
    packed = gzip.compress(b"content")
    with pytest.raises(InvalidRequest, match=f"one gzip member alone, {len(packed)} bytes"):
        inflate(memoryview(packed * 2), Encoding.GZIP, MIB)


def test_raw_deflate_and_the_other_format_are_refused():
    raw = zlib.compressobj(wbits=-15)
    for body, encoding in (
        (raw.compress(b"content") + raw.flush(), Encoding.DEFLATE),
        (gzip.compress(b"content"), Encoding.DEFLATE),
        (zlib.compress(b"content"), Encoding.GZIP),
    ):
        with pytest.raises(InvalidRequest, match="must be one"):
            inflate(memoryview(body), encoding, MIB)


@given(st.binary(max_size=60), st.sampled_from(Encoding), st.integers(0, 200))
def test_any_bytes_give_a_body_or_a_sentence(content, encoding, cap):
    flipped = bytearray(REFERENCE[encoding][0](content * 3))
    flipped[cap % len(flipped)] ^= 0x10
    for body in (content, bytes(flipped)):
        inflated = value_or_refusal(inflate, memoryview(body), encoding, cap, statuses=(400, 413))
        assert inflated is None or inflated.nbytes <= cap
