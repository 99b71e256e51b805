"""What makes the fused engine's first batch as fast as the hundredth."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch

from service.engine.base import Output
from service.engine.cuda_device import CudaDevice
from service.engine.slot import Products, Slot
from service.engine.weights import ResidentLayer, ResidentModel


def prepare_threads(
    device: CudaDevice, slots: Sequence[Slot], weights: ResidentLayer, count: int
) -> None:
    """Have as many cuBLAS handles with a workspace as there will be threads.

    torch makes one per thread at its first product; a thread that ends leaves its own behind for
    the next, so these are what the engine's threads will find.
    """
    together = threading.Barrier(count)
    errors: list[BaseException] = []

    def work(slot: Slot) -> None:
        try:
            device.enter()
            together.wait()
            torch.mm(slot.gated[:1], weights.down.T, out=slot.answer[:1])
            # Nobody ends before all have a handle, or two would have the same.
            together.wait()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            together.abort()

    slots = [slots[index % len(slots)] for index in range(count)]
    threads = [threading.Thread(target=work, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )


def load_kernels(  # noqa: PLR0917 - the order of the others here
    device: CudaDevice,
    slot: Slot,
    products: Products,
    weights: ResidentLayer,
    captured: Iterable[int],
    max_batch_tokens: int,
) -> None:
    """Run every size class once: CUDA loads a kernel at its first use, which a capture forbids."""
    sizes = {max_batch_tokens, *captured}
    size = 1
    while size < max_batch_tokens:
        sizes |= {size, min(size + size // 2, max_batch_tokens)}
        size *= 2
    slot.x.zero_()
    for tokens in sorted(sizes):
        for output in Output:
            slot.compute(products, weights, output, tokens, slot.timers)
    device.synchronize()


def capture(  # noqa: PLR0917 - the order of the others here
    device: CudaDevice,
    slot: Slot,
    products: Products,
    model: ResidentModel,
    small: Mapping[Output, Sequence[int]],
    larger: Mapping[Output, Sequence[int]],
) -> int:
    """Capture every graph of a slot; returns how many.

    Args:
        device: To be entered by the thread.
        slot: Gets a trip for each.
        products: The kernels.
        model: Every layer gets its own.
        small: Of `buckets.plan_buckets`.
        larger: Of `buckets.plan_trips`.
    """
    for layer, weights, output, size in _every(model, small):
        enqueue = partial(slot.enqueue_small, products, weights, output, size)
        slot.trips[layer, output, size] = slot.small_trip(device.capture(enqueue), output)
    for layer, weights, output, size in _every(model, larger):
        enqueue = partial(slot.enqueue_kernels, products, weights, output, size)
        slot.trips[layer, output, size] = slot.trip(device.capture(enqueue), output)
    return len(slot.trips)


def _every(
    model: ResidentModel, plan: Mapping[Output, Sequence[int]]
) -> Iterator[tuple[int, ResidentLayer, Output, int]]:
    """Layer, its weights, output and size of each graph of a plan."""
    for layer, weights in model.layers.items():
        for output, sizes in plan.items():
            for size in sizes:
                yield layer, weights, output, size


def measure_graphs(
    device: CudaDevice, slot: Slot, layer: int, small: Mapping[Output, Sequence[int]]
) -> Mapping[tuple[Output, int], float]:
    """Seconds that a slot's small batches of one layer take, by output and bucket."""
    found = {}
    for output, buckets in small.items():
        for bucket in buckets:
            # A first launch takes longer.
            for _ in range(2):
                device.begin_trip(slot.trips[layer, output, bucket], b"")
                device.synchronize()
            timers = slot.graph_timers
            (found[output, bucket],) = device.read_laps(device.laps([(timers.begin, timers.end)]))
    return found
