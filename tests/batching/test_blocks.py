"""Slots in one buffer: never two in one place, and all of it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batching.admission import Admission
from service.batching.blocks import Block, Blocks
from service.errors import QueueFull

SIZE = 1 << 16


def new_blocks(size: int = SIZE) -> Blocks:
    return Blocks(memoryview(bytearray(size)), "bodies")


def test_a_slot_is_as_long_as_was_asked_for_and_writes_through():
    memory = memoryview(bytearray(SIZE))
    slot = Blocks(memory, "bodies").acquire(5000)
    assert slot.view.nbytes == 5000
    slot.view[:] = b"x" * 5000
    assert memory[slot.offset : slot.offset + 5001] == b"x" * 5000 + b"\0"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, SIZE), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_no_two_slots_share_a_byte_and_everything_joins_again(sizes, luck):
    blocks = new_blocks()
    lent: list[Block] = []
    for nbytes in sizes:
        while lent and luck.random() < 0.4:
            lent.pop(luck.randrange(len(lent))).release()
        try:
            new = blocks.acquire(nbytes)
        except QueueFull:
            # Refused only where it truly does not fit beside what is lent.
            assert blocks.lent_bytes + max(4096, 1 << (nbytes - 1).bit_length()) > SIZE // 2
            continue
        for old in lent:
            assert (
                new.offset + max(nbytes, 1) <= old.offset
                or old.offset + max(old.view.nbytes, 1) <= new.offset
            )
        lent.append(new)
    for slot in lent:
        slot.release()
    assert blocks.lent_bytes == 0
    assert blocks.acquire(SIZE).view.nbytes == SIZE


def test_what_was_used_last_is_used_first():
    blocks = new_blocks()
    first, _ = blocks.acquire(4096), blocks.acquire(4096)
    first.release()
    assert blocks.acquire(100).offset == first.offset


def test_a_full_buffer_refuses_and_says_why():
    blocks = new_blocks()
    slot = blocks.acquire(SIZE - 1)
    with pytest.raises(QueueFull, match=r"^bodies: 65536 of 65536 bytes are lent and .* 4096 in"):
        blocks.acquire(0)
    slot.release()
    slot.release()
    assert blocks.lent_bytes == 0
    assert blocks.acquire(0).view.nbytes == 0


def test_a_refused_slot_leaves_no_budget_behind():
    admission = Admission(new_blocks(), max_queue_tokens=100, max_queue_bytes=10 * SIZE)
    lease = admission.admit(1, SIZE)
    with pytest.raises(QueueFull, match="bodies"):
        admission.admit(2, 10)
    assert (admission.requests, admission.tokens, admission.bytes) == (1, 1, SIZE)
    lease.release()
    assert (admission.requests, admission.tokens, admission.bytes) == (0, 0, 0)


@pytest.mark.parametrize("size", [0, 2048, 5000, SIZE + 4096])
def test_memory_must_be_a_power_of_two(size):
    with pytest.raises(ValueError, match="power of two"):
        new_blocks(size)
