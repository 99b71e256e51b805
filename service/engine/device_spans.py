"""Batches with rows in clients' memory on the device, where the device alone copies and converts.

Those copies go on the same streams as the ones across the bus, and so wait for the same events; the
other rows of such a batch pass as they always do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from service.engine.base import Buffer, DeviceWindow, DType, Rows, Segment
from service.engine.cuda_device import CudaDevice
from service.engine.device_memory import device_rows
from service.engine.slot import Slot
from service.engine.spans import Spans, convert_outputs, input_spans, output_spans


class Placed(NamedTuple):
    """One request's rows among those of its batch."""

    segment: Segment
    rows: slice


def arrange(segments: Sequence[Segment]) -> list[Placed]:
    """Place a batch so that what is copied in one call lies together: rows may be in any order."""
    order = {(False, False): 0, (False, True): 1, (True, True): 2, (True, False): 3}
    placed: list[Placed] = []
    first = 0
    for one in sorted(segments, key=lambda one: order[_away(one.input), _away(one.output)]):
        placed.append(Placed(one, slice(first, first + one.tokens)))
        first += one.tokens
    return placed


class DeviceSpans:
    """Both directions of such batches.

    Args:
        device: The GPU.
        dtype: The resident type.
        allocate: Makes memory for rows of the host that are converted.
    """

    def __init__(self, device: CudaDevice, dtype: DType, allocate: Callable[[int], Buffer]) -> None:
        self._device = device
        self._dtype = dtype
        self._allocate = allocate

    def send(self, slot: Slot, placed: Sequence[Placed]) -> list[Spans]:
        """Enqueue all inputs to the slot, between the same events as those of other batches.

        Returns:
            What must be kept until the copies are over.
        """
        device, width, timers = self._device, slot.x.shape[1], slot.timers
        kept: list[Spans] = []
        timers.begin.record(device.h2d)
        for away, group in groupby(placed, lambda one: _away(one.segment.input)):
            run = list(group)
            if away:
                for segment, rows in run:
                    source = device_rows(segment.input, segment.input_dtype, width)
                    device.copy_rows(slot.x[rows], source, device.h2d)
            else:
                segments = [one.segment for one in run]
                spans = input_spans(segments, self._dtype, width, self._allocate)
                kept.append(spans)
                target = slot.x[run[0].rows.start :]
                device.send(slot.upload.staging, spans.packed, target, timers.begin, timers.arrived)
        timers.arrived.record(device.h2d)
        return kept

    def receive(self, slot: Slot, placed: Sequence[Placed], result: torch.Tensor) -> float:
        """Fill all outputs behind the event `done` of the slot; returns when all are complete.

        Args:
            slot: The batch's.
            placed: The batch.
            result: [tokens, width] on the device, in the placed order.

        Returns:
            Seconds of host time after copies had ended.
        """
        device, width, end = self._device, result.shape[1], slot.timers.end
        device.d2h.wait_event(slot.done)
        for segment, rows in placed:
            if _away(segment.output):
                target = device_rows(segment.output, segment.output_dtype, width)
                device.copy_rows(target, result[rows], device.d2h)
        end.record(device.d2h)
        host_s = 0.0
        for away, group in groupby(placed, lambda one: _away(one.segment.output)):
            if not away:
                host_s += self._fill(slot, list(group), result)
        # What clients read by themselves has to be there when they hear of it.
        end.synchronize()
        return host_s

    def _fill(self, slot: Slot, run: Sequence[Placed], result: torch.Tensor) -> float:
        """Outputs on the host that lie one behind the other in the result."""
        width = result.shape[1]
        segments = [one.segment for one in run]
        spans = output_spans(segments, self._dtype, width, self._allocate)
        host_s = self._device.receive(
            slot.download.staging,
            result[run[0].rows.start :],
            spans.packed,
            slot.done,
            slot.timers.end,
        )
        return host_s + convert_outputs(spans, width)


def _away(rows: Rows) -> bool:
    return isinstance(rows, DeviceWindow)
