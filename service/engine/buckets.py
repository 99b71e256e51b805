"""Which batch sizes get a CUDA graph: a pure function of the model's shape.

A graph holds a whole small batch, its two copies included, and is launched by one call instead of
a dozen. Its copies are on the kernels' stream and as long as the bucket, so such graphs end where a
copy takes longer than what giving it a stream of its own costs. Of larger batches, up to where the
calls are nothing next to the kernels, a graph holds the kernels alone: a trip. The largest are
launched call by call, at their exact size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from service.engine.base import ModelSpec, Output

# One copy of a bucket takes at most some 8 µs of PCIe at this size.
GRAPH_BYTES = 256 << 10
# Some 0.4 ms of kernels, in which a dozen calls are made while the batch before computes.
TRIP_FLOPS = 1 << 38
# Kernels compute whole tiles of so many rows anyway; trips of more than a few are a quarter apart.
_TILE = 128
_PARTS = 4
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
    plan = {output: _powers(model, output, max_batch_tokens) for output in Output}
    while sum(map(len, plan.values())) > _most(model, slots):
        if max(map(len, plan.values())) == 1:
            return dict.fromkeys(Output, ())
        # Every second one, from the largest down: more padding, still one launch.
        plan = {output: buckets[::-1][::2][::-1] for output, buckets in plan.items()}
    return plan


def plan_trips(
    model: ModelSpec,
    max_batch_tokens: int,
    slots: int,
    small: Mapping[Output, Sequence[int]],
) -> Mapping[Output, tuple[int, ...]]:
    """The same for graphs of the kernels alone, beyond the sizes that `plan_buckets` found.

    Where there were too many it is the largest that go by calls, which take the least part of their
    time, and whose padding would take the most.

    Args:
        model: As there.
        max_batch_tokens: As there.
        slots: As there.
        small: What it found; where that is nothing, there are no trips either.
    """
    every = [
        (output, size)
        for output in Output
        for size in _tiles(model, output, max_batch_tokens, small[output])
    ]
    every.sort(key=lambda trip: model.flops(*trip))
    kept = every[: _most(model, slots)]
    return {output: tuple(size for of, size in kept if of is output) for output in Output}


def _most(model: ModelSpec, slots: int) -> int:
    """Graphs of one kind that a layer may have in a slot."""
    return MAX_GRAPHS // (len(model.layers) * slots)


def find_bucket(buckets: Sequence[int], tokens: int) -> int | None:
    """The smallest bucket that holds so many tokens; None where they are too many."""
    index = bisect_left(buckets, tokens)
    return buckets[index] if index < len(buckets) else None


def _powers(model: ModelSpec, output: Output, max_batch_tokens: int) -> tuple[int, ...]:
    row_bytes = max(model.hidden_size, model.width(output)) * model.dtype.itemsize
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
    """Powers of two up to a tile, then whole tiles, or quarters of a power of two."""
    buckets: list[int] = []
    size = small[-1] if small else max_batch_tokens
    while size < max_batch_tokens:
        power = 1 << (size.bit_length() - 1)
        step = max(_TILE, power // _PARTS)
        size = min(2 * size, size + step - size % step)
        if model.flops(output, size) > TRIP_FLOPS:
            break
        buckets.append(size)
    return tuple(buckets)
