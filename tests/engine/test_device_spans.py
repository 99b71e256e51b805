"""Batches with rows in a client's memory on the device, on a device that is only a CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from service.engine import device_spans
from service.engine.base import (
    Batch,
    DeviceWindow,
    DType,
    Engine,
    OpensDeviceMemory,
    Output,
    Segment,
    host_rows,
)
from service.engine.device_memory import device_rows
from service.engine.reference import ReferenceEngine
from service.engine.spans import input_spans, output_spans
from service.engine.weights import TORCH_DTYPES
from tests.engine.batches import WIRE, make_batch, make_model, to_bytes
from tests.engine.fake_device import Operation
from tests.engine.fused_engines import HIDDEN, LARGEST_GRAPH, Made, draw, exact
from tests.engine.test_fused_order import assert_order, the_slot, watch

HANDLE = b"h" * 64
SIZE = 1 << 20
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


class Client:
    """Rows in memory of the device."""

    def __init__(self, made: Made) -> None:
        made.device.shared[HANDLE] = torch.zeros(SIZE, dtype=torch.uint8)
        self.content = made.device.shared[HANDLE]
        self.memory = made.engine.open_device_memory(HANDLE, 0, SIZE)
        self._used = 0

    def window(self, nbytes: int, data: bytes = b"") -> DeviceWindow:
        # Where only elements are aligned.
        at = self._used + 4
        self._used = at + -(-nbytes // 4) * 4
        assert self._used <= SIZE
        self.content.numpy()[at : at + len(data)] = list(data)
        return DeviceWindow(self.memory, at, nbytes)

    def read(self, rows: memoryview | DeviceWindow) -> bytes:
        if isinstance(rows, DeviceWindow):
            return self.content[rows.offset : rows.offset + rows.nbytes].numpy().tobytes()
        return bytes(rows)


def make_segments(
    client: Client, inputs: list[torch.Tensor], width: int, places: list[tuple[bool, bool]]
) -> list[Segment]:
    """A segment per input; each place says whether its input and its output are on the device."""
    segments = []
    for index, (x, (away_in, away_out)) in enumerate(zip(inputs, places, strict=True)):
        answer_dtype = WIRE[DTYPES[(index + 1) % 3]]
        nbytes = len(x) * width * answer_dtype.itemsize
        data = to_bytes(x)
        segments.append(
            Segment(
                len(x),
                client.window(len(data), data) if away_in else memoryview(bytearray(data)),
                WIRE[x.dtype],
                client.window(nbytes) if away_out else memoryview(bytearray(nbytes)),
                answer_dtype,
            )
        )
    return segments


EVERY_PLACE = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("counts", [(1,) * 8, (3, 20, 1, 30, 7, 5, 2, 70)], ids=str)
@pytest.mark.parametrize("order", range(0, 24, 5))
def test_each_way_in_goes_with_each_way_out(
    make, output: Output, counts: tuple[int, ...], order: int
) -> None:
    made = make()
    client = Client(made)
    places = list(itertools.permutations(EVERY_PLACE))[order]
    inputs = [draw(n, DTYPES[i % 3], seed=i) for i, n in enumerate(counts)]
    width = made.engine.model.width(output)
    segments = make_segments(client, inputs, width, [*places, *places])
    made.engine.run(Batch(3, output, segments))
    eps = torch.finfo(torch.bfloat16).eps
    for x, segment in zip(inputs, segments, strict=True):
        data = bytearray(client.read(segment.output))
        answer = torch.frombuffer(data, dtype=TORCH_DTYPES[segment.output_dtype])
        expected = exact(made.model, x, 3, output)
        scale = expected.abs().amax(dim=1, keepdim=True)
        assert ((answer.view(len(x), -1).double() - expected).abs() <= 2 * eps * scale).all()
        assert client.read(segment.input) == to_bytes(x)


def test_such_a_batch_takes_no_graph_and_runs_at_its_size(make) -> None:
    made = make()
    segments = make_segments(Client(made), [draw(1), draw(2)], HIDDEN, EVERY_PLACE[1:3])
    assert sum(segment.tokens for segment in segments) < LARGEST_GRAPH
    batch = Batch(0, Output.MLP, segments)
    assert made.engine.expected_s(Output.MLP, 3) is not None
    assert made.engine.launch(batch) is None
    made.engine.run(batch)
    assert made.device.replays == 0
    assert made.gate_up.sizes == [3]


@pytest.mark.parametrize("place", EVERY_PLACE[1:])
def test_copies_wait_for_kernels_and_the_host_for_copies(make, place: tuple[bool, bool]) -> None:
    made = make(slots=1)
    slot = the_slot(made)
    segments = make_segments(Client(made), [draw(5)], HIDDEN, [place])
    log = watch(made, Batch(0, Output.MLP, segments))
    away_in, away_out = ("copy on device" if away else "copy" for away in place)
    assert_order(
        log,
        Operation("h2d", "record", slot.timers.begin),
        Operation("h2d", away_in),
        Operation("h2d", "record", slot.timers.arrived),
        Operation("compute", "wait", slot.timers.arrived),
        Operation("compute", "gate/up"),
        Operation("compute", "record", slot.done),
        Operation("d2h", "wait", slot.done),
        Operation("d2h", away_out),
        Operation("host", "wait", slot.timers.end),
    )
    assert log[-1] == Operation("host", "wait", slot.timers.end)
    last = len(log) - 1 - log[::-1].index(Operation("d2h", "record", slot.timers.end))
    assert log.index(Operation("d2h", away_out)) < last
    assert ("host", "fill") not in [one[:2] for one in log] or not place[0]


def test_rows_that_are_copied_in_one_call_lie_together(make) -> None:
    client = Client(make())
    places = [(True, False), (False, True), (True, True), (False, False)] * 2
    inputs = [draw(n + 1) for n in range(8)]
    segments = make_segments(client, inputs, HIDDEN, places)
    placed = device_spans.arrange(segments)
    away = [
        [isinstance(rows, DeviceWindow) for rows in (one.segment.input, one.segment.output)]
        for one in placed
    ]
    assert [key for key, _ in itertools.groupby(one[0] for one in away)] == [False, True]
    assert [key for key, _ in itertools.groupby(one[1] for one in away)] == [False, True, False]
    assert {id(one.segment) for one in placed} == {id(segment) for segment in segments}
    rows = [row for one in placed for row in range(one.rows.start, one.rows.stop)]
    assert rows == list(range(sum(len(x) for x in inputs)))
    assert all(one.rows.stop - one.rows.start == one.segment.tokens for one in placed)


def test_no_processor_can_touch_a_window(make) -> None:
    made = make()
    window = Client(made).window(2 * HIDDEN)
    for use in (memoryview, bytes, np.frombuffer, torch.frombuffer, host_rows):
        with pytest.raises(TypeError):
            use(window)
    row = memoryview(bytearray(2 * HIDDEN))
    for segment in (
        Segment(1, window, DType.BF16, row, DType.BF16),
        Segment(1, row, DType.BF16, window, DType.BF16),
        Segment(1, window, DType.BF16, window, DType.FP16),
    ):
        batch = Batch(0, Output.MLP, [segment])
        assert not batch.is_on_host
        with pytest.raises(TypeError, match="must be in host memory, are on the device"):
            ReferenceEngine(make_model(), torch.device("cpu")).run(batch)
    for dtype in (DType.BF16, DType.FP16):
        with pytest.raises(TypeError, match="must be in host memory"):
            input_spans([segment], dtype, HIDDEN, bytearray)
    with pytest.raises(TypeError, match="must be in host memory"):
        output_spans([segment], DType.FP16, HIDDEN, bytearray)


@pytest.mark.parametrize("rows", [memoryview(b""), DeviceWindow(object(), 0, 4)], ids=str)
def test_rows_elsewhere_are_none_of_the_devices(rows: object) -> None:
    with pytest.raises(TypeError, match="must be in memory that the engine opened"):
        device_rows(rows, DType.BF16, 2)


def test_a_batch_of_host_rows_is_on_the_host(make) -> None:
    made = make()
    assert make_batch(made.engine.model, [draw(1), draw(2)]).is_on_host
    engine: Engine = made.engine
    assert isinstance(engine, OpensDeviceMemory)


def test_a_failing_batch_ends_when_the_device_is_idle(make) -> None:
    made = make()
    segments = make_segments(Client(made), [draw(5)], HIDDEN, [(True, True)])

    def fail(x: torch.Tensor) -> None:
        raise ValueError("no kernel")

    made.gate_up.before = fail
    made.device.log.clear()
    with pytest.raises(ValueError, match="no kernel"):
        made.engine.run(Batch(0, Output.MLP, segments))
    assert made.device.log[-1] == Operation("host", "wait")
