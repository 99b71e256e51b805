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


def capture(
    device: CudaDevice,
    slot: Slot,
    products: Products,
    model: ResidentModel,
    buckets: Mapping[Output, Sequence[int]],
) -> int:
    """Capture every graph of a slot; returns how many."""
    for layer, weights, output, size in _every(model, buckets):
        enqueue = partial(slot.enqueue_small, products, weights, output, size)
        slot.graphs[layer, output, size] = device.capture(enqueue)
    return len(slot.graphs)


def capture_trips(
    device: CudaDevice,
    slot: Slot,
    products: Products,
    model: ResidentModel,
    trips: Mapping[Output, Sequence[int]],
) -> int:
    """The same for trips."""
    for layer, weights, output, size in _every(model, trips):
        enqueue = partial(slot.enqueue_kernels, products, weights, output, size)
        slot.trips[layer, output, size] = slot.trip(device.capture_graph(enqueue), output)
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
    device: CudaDevice, slot: Slot, layer: int
) -> Mapping[tuple[Output, int], float]:
    """Seconds that a slot's graphs of one layer take, by output and bucket."""
    found = {}
    for (of, output, bucket), replay in slot.graphs.items():
        if of == layer:
            # The first replay of a graph uploads it.
            for _ in range(2):
                replay()
                device.record(slot.graph_timers.end)
                device.synchronize()
            found[output, bucket] = slot.graph_timers.total()
    return found
