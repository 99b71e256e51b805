"""Which waiting requests form the next batch: a pure function of the queue, the limits and now."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Literal, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)

Trigger = Literal["full", "idle", "delay", "drain"]


class Waiting(Protocol):
    """What the policy needs to know of a request."""

    @property
    def tokens(self) -> int:
        """Rows, between 1 and max_batch_tokens."""

    @property
    def arrival(self) -> float:
        """When it joined the queue, in seconds of the same clock as `now`."""


# Of input. With more than two smaller batches in flight the rest only queue on the device, and
# every batch costs the interpreter the same: two of 16 requests are served sooner than four of 8.
# Larger ones keep both directions of the bus and the kernels busy only if there are more of them.
SMALL_BATCH_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one batch, and of how many run at a time.

    Attributes:
        max_batch_tokens: Of one batch.
        max_queue_delay_s: How long a request may wait for company.
        small_batch_tokens: A batch of fewer counts as small.
        max_small_batches: So many small ones of a group in flight let its next wait for company.
    """

    max_batch_tokens: int
    max_queue_delay_s: float = 0.0
    small_batch_tokens: int = 0
    max_small_batches: int = 1

    def is_small(self, tokens: int) -> bool:
        """Whether a batch of so many tokens counts as small."""
        return tokens < self.small_batch_tokens


def plan_limits(
    *, max_batch_tokens: int, max_queue_delay_s: float, row_bytes: int, concurrency: int
) -> Limits:
    """For an engine that runs `concurrency` batches at a time, of rows of such a size."""
    return Limits(
        max_batch_tokens=max_batch_tokens,
        max_queue_delay_s=max_queue_delay_s,
        small_batch_tokens=-(-SMALL_BATCH_BYTES // row_bytes),
        max_small_batches=-(-concurrency // 2),
    )


@dataclass(frozen=True, slots=True)
class Take(Generic[Key]):
    """Start a batch with the first `count` requests of group `key`."""

    key: Key
    count: int
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due yet; ask again at `until`, or when something arrives."""

    until: float


def select_batch(
    groups: Mapping[Key, Collection[Waiting]],
    limits: Limits,
    now: float,
    *,
    draining: bool = False,
    small_batches: Mapping[Key, int] = MappingProxyType({}),
) -> Take[Key] | Wait | None:
    """Choose the next batch for an engine that takes one more.

    Groups hold requests that can be computed together, first come first. The group whose oldest
    request has waited longest goes first, so nothing starves; within a group order is kept and
    nobody is skipped to fill a gap, so a large request is not passed by small ones for ever. With
    a delay, a group that is neither full nor due lets a younger one go that is. A small batch that
    could still grow stays while as many of its group as the limits want are in flight, which
    `small_batches` counts; the end of one of those is when to ask again, whatever else runs, so
    that it does not starve.

    Returns:
        Take, or Wait when every group still hopes for company, or None when nothing waits but for
        the end of a batch.

    Raises:
        ValueError: a request fits no batch; admission must not have let it in.
    """
    until: float | None = None
    oldest_first = sorted(groups.items(), key=_head_arrival) if len(groups) > 1 else groups.items()
    for key, group in oldest_first:
        count, tokens, full = _fill(group, limits.max_batch_tokens)
        if full:
            return Take(key, count, "full")
        if limits.is_small(tokens) and small_batches.get(key, 0) >= limits.max_small_batches:
            continue
        if draining:
            return Take(key, count, "drain")
        if limits.max_queue_delay_s == 0:
            return Take(key, count, "idle")
        due = next(iter(group)).arrival + limits.max_queue_delay_s
        if due <= now:
            return Take(key, count, "delay")
        until = due if until is None else min(until, due)
    return None if until is None else Wait(until)


def _head_arrival(item: tuple[object, Collection[Waiting]]) -> float:
    return next(iter(item[1])).arrival


def _fill(group: Collection[Waiting], max_tokens: int) -> tuple[int, int, bool]:
    """How many of the first requests fit, their tokens, and whether a batch can take no more."""
    tokens = count = 0
    for request in group:
        if tokens + request.tokens > max_tokens:
            if not count:
                # Put back for ever, it would starve all behind it.
                raise ValueError(
                    f"tokens: must be at most max_batch_tokens {max_tokens} at admission, "
                    f"is {request.tokens}"
                )
            return count, tokens, True
        tokens += request.tokens
        count += 1
    return count, tokens, tokens == max_tokens
