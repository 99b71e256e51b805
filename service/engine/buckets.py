"""Which batch sizes get a CUDA graph: a pure function of the model's shape.

A graph holds a whole small batch, its two copies included, and is launched by one call instead of
a dozen. Its copies are on the kernels' stream and as long as the bucket, so such graphs end where a
copy takes longer than what giving it a stream of its own costs. Of larger batches, up to where the
calls count for nothing, a graph holds the kernels alone: a trip. The largest are launched call by
call, at their exact size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from service.engine.base import ModelSpec, Output

# One copy of a bucket takes at most some 8 µs of PCIe at this size.
GRAPH_BYTES = 256 << 10
# With larger batches the copies take longer than a dozen calls.
TRIP_BYTES = 4 << 20
# Kernels compute whole tiles of so many rows anyway.
_TILE = 128
# Powers of two pad at most as many rows as there are; kernels pad to 64 rows and more anyway.
_LARGEST = 256
# Of each kind. Capturing takes about half a millisecond each, and each keeps some 100 KB of the
# device. 2560 are those of the 80 layers of a 72B, for four batches in flight.
MAX_GRAPHS = 2560


def plan_buckets(
    model: ModelSpec, max_batch_tokens: int, slots: int
) -> Mapping[Output, tuple[int, ...]]:
    """Batch sizes in tokens that get a graph, ascending, by output.

    Args:
        model: What is resident; every layer gets its own graphs.
        max_batch_tokens: No batch is larger.
        slots: Batches in flight, each with buffers, hence graphs, of its own.
    """
    return _bounded(
        model, slots, {output: _powers(model, output, max_batch_tokens) for output in Output}
    )


def plan_trips(
    model: ModelSpec,
    max_batch_tokens: int,
    slots: int,
    small: Mapping[Output, Sequence[int]],
) -> Mapping[Output, tuple[int, ...]]:
    """The same for graphs of the kernels alone, beyond the sizes that `plan_buckets` found.

    Args:
        model: As there.
        max_batch_tokens: As there.
        slots: As there.
        small: What it found.
    """
    return _bounded(
        model,
        slots,
        {output: _tiles(model, output, max_batch_tokens, small[output]) for output in Output},
    )


def _bounded(
    model: ModelSpec, slots: int, plan: dict[Output, tuple[int, ...]]
) -> Mapping[Output, tuple[int, ...]]:
    while sum(map(len, plan.values())) * len(model.layers) * slots > MAX_GRAPHS:
        if max(map(len, plan.values())) <= 1:
            return dict.fromkeys(Output, ())
        # Every second one, from the largest down: more padding, still one launch.
        plan = {output: buckets[::-1][::2][::-1] for output, buckets in plan.items()}
    return plan


def find_bucket(buckets: Sequence[int], tokens: int) -> int | None:
    """The smallest bucket that holds so many tokens; None where they are too many."""
    index = bisect_left(buckets, tokens)
    return buckets[index] if index < len(buckets) else None


def _powers(model: ModelSpec, output: Output, max_batch_tokens: int) -> tuple[int, ...]:
    row_bytes = _row_bytes(model, output)
    buckets = []
    size = 1
    while size <= _LARGEST and size * row_bytes <= GRAPH_BYTES:
        buckets.append(size)
        if size >= max_batch_tokens:
            break
        size *= 2
    return tuple(buckets)


def _tiles(
    model: ModelSpec, output: Output, max_batch_tokens: int, small: Sequence[int]
) -> tuple[int, ...]:
    """Powers of two up to a tile, then whole tiles."""
    row_bytes = _row_bytes(model, output)
    buckets: list[int] = []
    size = small[-1] if small else 1
    while size < max_batch_tokens:
        size = min(2 * size, size + _TILE - size % _TILE)
        if size * row_bytes > TRIP_BYTES:
            break
        buckets.append(size)
    return tuple(buckets)


def _row_bytes(model: ModelSpec, output: Output) -> int:
    """Of the wider of the two copies."""
    return max(model.hidden_size, model.width(output)) * model.dtype.itemsize
