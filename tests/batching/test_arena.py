"""Slots: as long as asked for, never handed out twice, and not kept without bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batching.arena import Arena, Slot


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [
        (0, 4096),
        (1, 4096),
        (4095, 4096),
        (4096, 4096),
        (4097, 8192),
        (8192, 8192),
        (100_000, 1 << 17),
    ],
)
def test_a_slot_is_a_writable_view_into_a_power_of_two(nbytes: int, block: int):
    slot = Arena(1 << 20).acquire(nbytes)
    assert len(slot.view) == nbytes
    assert len(slot.view.obj) == block
    slot.view[:] = b"x" * nbytes
    assert bytes(slot.view) == b"x" * nbytes


def test_a_block_is_reused_by_any_size_of_its_class():
    arena = Arena(1 << 20)
    slot = arena.acquire(5000)
    block = slot.view.obj
    slot.release()
    assert arena.free_bytes == 8192
    assert arena.acquire(4096).view.obj is not block
    again = arena.acquire(8000)
    assert again.view.obj is block
    assert len(again.view) == 8000
    assert arena.free_bytes == 0


def test_an_earlier_body_does_not_show_through():
    arena = Arena(1 << 20)
    first = arena.acquire(100)
    first.view[:] = b"secret".ljust(100)
    first.release()
    assert len(arena.acquire(3).view) == 3


def test_released_twice_is_returned_once():
    arena = Arena(1 << 20)
    slot = arena.acquire(1)
    slot.release()
    slot.release()
    assert arena.free_bytes == 4096
    assert arena.acquire(1).view.obj is not arena.acquire(1).view.obj


def test_what_comes_back_beyond_the_bound_is_dropped():
    arena = Arena(3 * 4096)
    slots = [arena.acquire(1) for _ in range(4)]
    large = arena.acquire(16384)
    for slot in (large, *slots):
        slot.release()
    assert arena.free_bytes == 3 * 4096
    blocks = {id(slot.view.obj) for slot in slots}
    kept = [arena.acquire(1) for _ in range(4)]
    assert sum(id(slot.view.obj) in blocks for slot in kept) == 3


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 1 << 16),
    st.lists(st.tuples(st.booleans(), st.integers(0, 20_000), st.integers(0, 9)), max_size=40),
)
def test_no_block_is_held_twice(keep_bytes: int, steps: list[tuple[bool, int, int]]):
    arena = Arena(keep_bytes)
    held: list[tuple[Slot, int]] = []
    for number, (acquire, nbytes, which) in enumerate(steps):
        if acquire:
            slot = arena.acquire(nbytes)
            slot.view[:] = bytes([number]) * nbytes
            held.append((slot, number))
        elif held:
            held.pop(which % len(held))[0].release()
        assert 0 <= arena.free_bytes <= keep_bytes
        for slot, mark in held:
            assert bytes(slot.view) == bytes([mark]) * len(slot.view)
