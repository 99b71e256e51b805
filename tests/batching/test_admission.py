"""The ledger: exact bounds, no reservation by what is refused, everything returned once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batching.admission import Admission, Lease
from service.batching.arena import Arena
from service.errors import QueueFull


def make(max_tokens: int = 100, max_bytes: int = 1000) -> tuple[Admission, Arena]:
    arena = Arena(1 << 20)
    return Admission(arena, max_queue_tokens=max_tokens, max_queue_bytes=max_bytes), arena


def ledger(admission: Admission) -> tuple[int, int, int]:
    return admission.requests, admission.tokens, admission.bytes


def test_a_lease_has_a_slot_of_the_bodys_size():
    admission, _ = make()
    assert len(admission.admit(1, 123).slot.view) == 123
    assert ledger(admission) == (1, 1, 123)


def test_the_bound_in_tokens_is_exact_and_named():
    admission, _ = make(max_tokens=100)
    admission.admit(60, 1)
    admission.admit(40, 1)
    with pytest.raises(QueueFull) as refusal:
        admission.admit(1, 1)
    assert str(refusal.value) == (
        "queue: 100 tokens wait and this request may add 1, which passes max_queue_tokens 100; "
        "try again later"
    )
    assert (refusal.value.status, refusal.value.retry_after_s) == (429, 1)
    assert ledger(admission) == (2, 100, 2)
    admission.admit(0, 1)


def test_the_bound_in_bytes_is_exact_and_named():
    admission, _ = make(max_bytes=1000)
    admission.admit(1, 999)
    with pytest.raises(QueueFull, match=r"999 bytes wait .* may add 2, .* max_queue_bytes 1000;"):
        admission.admit(1, 2)
    assert ledger(admission) == (1, 1, 999)
    admission.admit(1, 1)


def test_what_is_refused_takes_no_slot():
    admission, arena = make(max_tokens=1)
    admission.admit(1, 10).release()
    assert arena.free_bytes == 4096
    with pytest.raises(QueueFull):
        admission.admit(2, 10)
    assert arena.free_bytes == 4096


def test_a_start_returns_the_budget_and_keeps_the_slot():
    admission, arena = make()
    lease = admission.admit(7, 70)
    lease.start()
    lease.start()
    assert ledger(admission) == (0, 0, 0)
    assert arena.free_bytes == 0
    lease.release()
    lease.release()
    assert ledger(admission) == (0, 0, 0)
    assert arena.free_bytes == 4096


def test_a_release_without_a_start_returns_both():
    admission, arena = make()
    lease = admission.admit(7, 70)
    lease.release()
    lease.start()
    assert ledger(admission) == (0, 0, 0)
    assert arena.free_bytes == 4096


def test_settling_corrects_the_estimate():
    admission, _ = make()
    admission.admit(10, 100)
    lease = admission.admit(90, 100)
    lease.settle(5, 60)
    assert ledger(admission) == (2, 15, 160)
    lease.settle(0, 0)
    assert ledger(admission) == (2, 10, 100)
    lease.start()
    assert ledger(admission) == (1, 10, 100)


def test_a_slot_may_be_smaller_than_what_is_reserved():
    admission, _ = make()
    assert len(admission.admit(1, 900, slot_bytes=10).slot.view) == 10
    assert ledger(admission) == (1, 1, 900)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "admit", "grow", "settle", "start", "release"]),
            st.integers(0, 60),
            st.integers(0, 600),
        ),
        max_size=40,
    )
)
def test_the_ledger_is_the_sum_of_what_waits(steps: list[tuple[str, int, int]]):
    admission, _ = make()
    waiting: list[tuple[Lease, int, int]] = []
    started: list[Lease] = []
    for step, tokens, nbytes in steps:
        if step == "admit":
            fits = admission.tokens + tokens <= 100 and admission.bytes + nbytes <= 1000
            if fits:
                waiting.append((admission.admit(tokens, nbytes), tokens, nbytes))
            else:
                with pytest.raises(QueueFull):
                    admission.admit(tokens, nbytes)
        elif waiting:
            lease, admitted, size = waiting.pop(nbytes % len(waiting))
            if step == "settle":
                lease.settle(min(tokens, admitted), min(nbytes, size))
                waiting.append((lease, min(tokens, admitted), min(nbytes, size)))
            elif step == "grow":
                larger = (admitted + tokens, size + nbytes)
                if admission.tokens + tokens <= 100 and admission.bytes + nbytes <= 1000:
                    lease.grow(*larger)
                    waiting.append((lease, *larger))
                else:
                    with pytest.raises(QueueFull):
                        lease.grow(*larger)
                    waiting.append((lease, admitted, size))
            elif step == "start":
                lease.start()
                started.append(lease)
            else:
                lease.release()
        expected = (len(waiting), sum(t for _, t, _ in waiting), sum(n for _, _, n in waiting))
        assert ledger(admission) == expected
    for lease in (*started, *(lease for lease, _, _ in waiting)):
        lease.release()
    assert ledger(admission) == (0, 0, 0)


def test_a_lease_exchanges_its_slot_for_one_of_another_size():
    admission, arena = make()
    lease = admission.admit(1, 10)
    lease.exchange_slot(5000)
    assert len(lease.slot.view) == 5000
    assert arena.free_bytes == 4096
    lease.release()
    assert arena.free_bytes == 4096 + 8192


def test_what_waits_for_the_end_of_a_lease_is_called_once():
    lease, calls = make()[0].admit(1, 1), []
    lease.at_end(lambda: calls.append("a"))
    lease.at_end(lambda: calls.append("b"))
    lease.start()
    assert calls == []
    lease.release()
    lease.release()
    assert sorted(calls) == ["a", "b"]
