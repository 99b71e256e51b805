"""Which batch sizes get a CUDA graph: a pure function of the model's shape.

A graph holds a whole small batch, its two copies included, and is launched by one call instead of
a dozen. Its copies are on the kernels' stream and as long as the bucket, so graphs end where a copy
takes longer than what giving it a stream of its own costs; larger batches are launched call by
call, at their exact size, while the batch before them still computes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from service.engine.base import ModelSpec, Output

# One copy of a bucket takes at most some 8 µs of PCIe at this size.
GRAPH_BYTES = 256 << 10
# Powers of two pad at most as many rows as there are; kernels pad to 64 rows and more anyway.
_LARGEST = 256
# Capturing takes about half a millisecond each, and each keeps some 100 KB of the device.
# 2560 are those of the 80 layers of a 72B, for four batches in flight.
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
    plan = {output: _buckets(model, output, max_batch_tokens) for output in Output}
    while sum(map(len, plan.values())) * len(model.layers) * slots > MAX_GRAPHS:
        if max(map(len, plan.values())) == 1:
            return dict.fromkeys(Output, ())
        # Every second one, from the largest down: more padding, still one launch.
        plan = {output: buckets[::-1][::2][::-1] for output, buckets in plan.items()}
    return plan


def find_bucket(buckets: Sequence[int], tokens: int) -> int | None:
    """The smallest bucket that holds so many tokens; None where they are too many."""
    index = bisect_left(buckets, tokens)
    return buckets[index] if index < len(buckets) else None


def _buckets(model: ModelSpec, output: Output, max_batch_tokens: int) -> tuple[int, ...]:
    row_bytes = max(model.hidden_size, model.width(output)) * model.dtype.itemsize
    buckets = []
    size = 1
    while size <= _LARGEST and size * row_bytes <= GRAPH_BYTES:
        buckets.append(size)
        if size >= max_batch_tokens:
            break
        size *= 2
    return tuple(buckets)
