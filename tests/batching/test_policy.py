"""The policy against the sentences it promises: exhaustively for small queues, then at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batching.policy import Limits, Take, Wait, plan_limits, select_batch


@dataclass(eq=False)
class Request:
    tokens: int
    arrival: float


Groups = dict[str, list[Request]]


def test_nothing_waits():
    assert select_batch({}, Limits(8), 0.0) is None
    assert select_batch({}, Limits(8, 1.0), 0.0, draining=True) is None


def test_a_request_that_fits_no_batch_is_an_error_and_not_an_endless_loop():
    with pytest.raises(ValueError, match=r"at most max_batch_tokens 4 at admission, is 5"):
        select_batch({"a": [Request(5, 0.0)]}, Limits(4), 0.0)


def test_every_small_queue():
    """All queues of up to 4 requests of 1 to 4 tokens in 2 groups: 4681 of them."""
    seen = set()
    for requests in _small_queues():
        for simultaneous, draining in product((False, True), repeat=2):
            groups = _groups(requests, simultaneous)
            _check(groups, Limits(4), 9.0, draining, seen)
            _check(groups, Limits(5), 9.0, draining, seen)
            # Arrivals are at 0, 1, 2 and 3 s, so with this delay the first is still early at 3 s,
            # due at this very instant at 3.5 s and overdue at 4 s, when the second is early.
            for now in (3.0, 3.5, 4.0, 6.0):
                _check(groups, Limits(5, 3.5), now, draining, seen)
                # Sums below 3 are small, and with two of those in flight they stay.
                for small in (1, 2):
                    _check(groups, Limits(5, 3.5, 3, 2), now, draining, seen, small=small)
    # The search would prove little if some kind of decision never came up in it.
    assert seen == {"full", "idle", "delay", "drain", "wait", "nothing", "held"}


def _small_queues() -> Iterator[tuple[tuple[str, int], ...]]:
    kinds = list(product("ab", (1, 2, 3, 4)))
    for length in range(5):
        yield from product(kinds, repeat=length)


def _groups(requests: tuple[tuple[str, int], ...], simultaneous: bool) -> Groups:
    # The mapping's order means nothing: a group that was there first may have a younger head.
    groups: Groups = {"b": [], "a": []}
    for index, (key, tokens) in enumerate(requests):
        arrival = 0.0 if simultaneous else float(index)
        groups[key].append(Request(tokens, arrival))
    return {key: group for key, group in groups.items() if group}


def _check(
    groups: Groups, limits: Limits, now: float, draining: bool, seen: set[str], *, small: int = 0
) -> None:
    # Of one of the two groups.
    in_flight = {"a": small}
    decision = select_batch(groups, limits, now, draining=draining, small_batches=in_flight)
    if "a" in groups and small >= limits.max_small_batches:
        held = {"a"} if sum(one.tokens for one in groups["a"]) < 3 else set()
        seen |= {"held"} if held else set()
        groups = {key: group for key, group in groups.items() if key not in held}
    if decision is None:
        assert not groups
        seen.add("nothing")
    elif isinstance(decision, Wait):
        _check_wait(decision, groups, limits, now, draining)
        seen.add("wait")
    else:
        _check_take(decision, groups, limits, now, draining)
        seen.add(decision.trigger)


def _check_wait(decision: Wait, groups: Groups, limits: Limits, now: float, draining: bool) -> None:
    assert not any(_reasons(group, limits, now, draining) for group in groups.values())
    assert decision.until > now
    assert decision.until == min(g[0].arrival for g in groups.values()) + limits.max_queue_delay_s


def _check_take(decision: Take, groups: Groups, limits: Limits, now: float, draining: bool) -> None:
    group = groups[decision.key]
    taken, left = group[: decision.count], group[decision.count :]
    tokens = sum(request.tokens for request in taken)
    assert taken
    assert tokens <= limits.max_batch_tokens
    assert not left or tokens + left[0].tokens > limits.max_batch_tokens, "room was wasted"
    # Why it leaves: the strongest of the reasons that there are.
    assert decision.trigger == _reasons(group, limits, now, draining)[0]
    for other in groups.values():
        if other[0].arrival < group[0].arrival:
            assert not _reasons(other, limits, now, draining), "a younger group went first"


def _reasons(group: list[Request], limits: Limits, now: float, draining: bool) -> list[str]:
    """Every reason for which a group may leave now, strongest first."""
    return [
        reason
        for reason, holds in (
            ("full", sum(request.tokens for request in group) >= limits.max_batch_tokens),
            ("drain", draining),
            ("idle", limits.max_queue_delay_s == 0),
            ("delay", now >= group[0].arrival + limits.max_queue_delay_s),
        )
        if holds
    ]


@st.composite
def queues(draw: st.DrawFn) -> tuple[Groups, Limits]:
    """Queues as a batcher has them: each group in the order of arrival."""
    limits = Limits(draw(st.integers(1, 64)), draw(st.sampled_from([0.0, 0.25, 3.0])))
    groups: Groups = {key: [] for key in draw(st.permutations("abcd"))}
    now = 0.0
    for _ in range(draw(st.integers(0, 30))):
        now += draw(st.sampled_from([0.0, 0.125, 1.0]))
        key = draw(st.sampled_from("abcd"))
        tokens = draw(st.integers(1, limits.max_batch_tokens))
        groups[key].append(Request(tokens, now))
    return {key: group for key, group in groups.items() if group}, limits


@settings(max_examples=200, deadline=None)
@given(queues(), st.floats(0, 40), st.booleans())
def test_any_queue(queue: tuple[Groups, Limits], now: float, draining: bool):
    groups, limits = queue
    _check(groups, limits, now, draining, set())


@settings(max_examples=100, deadline=None)
@given(queues(), st.booleans())
def test_replay_answers_each_request_once_and_in_order(
    queue: tuple[Groups, Limits], draining: bool
):
    """Take what is decided, wait where that is decided, until nothing waits."""
    groups, limits = queue
    everybody = {key: list(group) for key, group in groups.items()}
    left: dict[str, list[Request]] = {key: [] for key in groups}
    now = max((group[-1].arrival for group in groups.values()), default=0.0)
    while (decision := select_batch(groups, limits, now, draining=draining)) is not None:
        if isinstance(decision, Wait):
            now = decision.until
            continue
        group = groups[decision.key]
        left[decision.key] += group[: decision.count]
        groups[decision.key] = group[decision.count :]
        if not groups[decision.key]:
            del groups[decision.key]
    assert left == everybody


@settings(max_examples=100, deadline=None)
@given(queues(), st.floats(0, 40))
def test_nobody_starves(queue: tuple[Groups, Limits], now: float):
    """Whoever has waited longest leaves next: at once if greedy, else once its delay is over."""
    groups, limits = queue
    if not groups:
        return
    oldest = min((group[0] for group in groups.values()), key=lambda request: request.arrival)
    now = max(now, oldest.arrival + limits.max_queue_delay_s)
    decision = select_batch(groups, limits, now)
    assert isinstance(decision, Take)
    assert groups[decision.key][0].arrival == oldest.arrival


@settings(max_examples=100, deadline=None)
@given(queues(), st.floats(0, 40))
def test_the_choice_is_pure(queue: tuple[Groups, Limits], now: float):
    groups, limits = queue
    before = {key: list(group) for key, group in groups.items()}
    first = select_batch(groups, limits, now)
    assert groups == before
    assert select_batch(groups, limits, now) == first


def test_a_large_request_is_not_passed_by_small_ones():
    groups = {"a": [Request(3, 0.0), Request(4, 1.0), Request(1, 2.0)]}
    assert select_batch(groups, Limits(4), 3.0) == Take("a", 1, "full")


def test_a_small_batch_leaves_when_it_is_all_a_batch_can_take():
    limits = Limits(4, small_batch_tokens=100, max_small_batches=1)
    groups = {"a": [Request(1, 0.0), Request(3, 1.0)]}
    assert select_batch(groups, limits, 2.0, small_batches={"a": 1}) == Take("a", 2, "full")
    groups = {"a": [Request(1, 0.0), Request(4, 1.0)]}
    assert select_batch(groups, limits, 2.0, small_batches={"a": 1}) == Take("a", 1, "full")


def test_two_megabytes_are_not_small():
    limits = plan_limits(
        max_batch_tokens=8192, max_queue_delay_s=0.0, row_bytes=1792, concurrency=4
    )
    assert limits.max_small_batches == 2
    assert limits.is_small(1170)
    assert not limits.is_small(1171)  # 2,098,432 bytes
    one = plan_limits(max_batch_tokens=8192, max_queue_delay_s=0.0, row_bytes=1792, concurrency=1)
    assert one.max_small_batches == 1


def test_a_full_younger_group_does_not_wait_for_an_older_one():
    groups = {"old": [Request(1, 0.0)], "young": [Request(2, 1.0), Request(2, 1.5)]}
    assert select_batch(groups, Limits(4, 5.0), 2.0) == Take("young", 2, "full")
    assert select_batch(groups, Limits(4, 5.0), 5.0) == Take("old", 1, "delay")
