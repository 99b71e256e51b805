"""Memory of the GPU that a client in another process shares: right answers, over HTTP and mixed.

pytest -m gpu tests/engine/test_cuda_shared_gpu.py
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import torch

from service.engine.base import Batch, DeviceWindow, DType, Output, Segment
from service.engine.fused import FusedEngine
from service.engine.weights import TORCH_DTYPES
from service.kernels import reference
from tests.engine.batches import WIRE
from tests.engine.cuda_client import CudaClient, loaded_runtime
from tests.engine.handle_steps import STEPS, allocate
from tests.engine.test_fused_gpu import HIDDEN, draw, make_engine, pytestmark  # noqa: F401
from tests.servers import ServerThread

SIZE = 96 << 20
INFER = "/v2/models/test/infer"
CUDA = "/v2/cudasharedmemory"
LAYER = 3
DATATYPES = {torch.bfloat16: "BF16", torch.float16: "FP16", torch.float32: "FP32"}


class Shared:
    """Memory of a client's that a service knows by the name `r`."""

    def __init__(self, url: str, engine: FusedEngine, client: CudaClient) -> None:
        self.engine = engine
        self.client = client
        self.address, self.handle = client.allocate(SIZE)
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        assert self.register("r")[0] == 200

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._server, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def register(
        self, name: str, handle: bytes | None = None, device: int = 0, nbytes: int = SIZE
    ) -> tuple[int, bytes]:
        """As tritonclient does."""
        body = {
            "raw_handle": {"b64": b64encode(handle or self.handle).decode()},
            "device_id": device,
            "byte_size": nbytes,
        }
        return self.call("POST", f"{CUDA}/region/{name}/register", json.dumps(body).encode())

    def infer(
        self,
        x: torch.Tensor,
        output: Output,
        source: int,
        target: int,
        regions: tuple[str, str] = ("r", "r"),
    ) -> tuple[int, bytes]:
        """From one offset to another; answers are of x's type."""
        nbytes = x.numel() * x.itemsize
        width = self.engine.model.width(output)
        tensor = {"name": "x", "shape": list(x.shape), "datatype": DATATYPES[x.dtype]}
        place_in = _place(regions[0], source, nbytes)
        place_out = _place(regions[1], target, len(x) * width * x.itemsize)
        document = {
            "parameters": {"layer": LAYER},
            "inputs": [{**tensor, "parameters": place_in}],
            "outputs": [{"name": output.value, "parameters": place_out}],
        }
        return self.call("POST", INFER, json.dumps(document).encode())

    def read(self, offset: int, tokens: int, output: Output, dtype: torch.dtype) -> torch.Tensor:
        width = self.engine.model.width(output)
        data = bytearray(self.client.read(self.address + offset, tokens * width * dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype).view(tokens, width)

    def close(self) -> None:
        self.call("POST", f"{CUDA}/unregister")
        assert not self.engine._shared._opened
        self.client.free(self.address)
        # Whatever the client did.
        allocate()


def to_bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def _place(region: str, offset: int, nbytes: int) -> dict[str, object]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": nbytes,
    }


def assert_right(
    engine: FusedEngine, x: torch.Tensor, answer: torch.Tensor, output: Output
) -> None:
    """Within two roundings to the resident dtype of the row's largest value in FP64."""
    weights = engine._resident.layers[LAYER]
    rows = x.to(weights.gate_up.dtype).cuda()
    if output is Output.GATED:
        exact = reference.gated(rows, weights.gate_up, "silu", torch.float64)
    else:
        exact = reference.mlp(rows, weights.gate_up, weights.down, "silu", torch.float64)
    bound = 2 * torch.finfo(weights.gate_up.dtype).eps * exact.abs().amax(dim=1, keepdim=True)
    assert ((answer.cuda().double() - exact).abs() <= bound).all()


@pytest.fixture(scope="module")
def client() -> Iterator[CudaClient]:
    torch.cuda.init()
    with CudaClient(loaded_runtime()) as made:
        yield made


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "1 worker"])
def served(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    engine = make_engine()
    with ServerThread(engine, client_shared_memory=True, workers=request.param) as thread:
        yield thread


@pytest.fixture
def shared(served: ServerThread, client: CudaClient) -> Iterator[Shared]:
    made = Shared(served.url, served.runtime.engine, client)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("dtype", DATATYPES, ids=str)
def test_a_client_writes_rows_and_finds_their_answers(
    shared: Shared, dtype: torch.dtype, output: Output
) -> None:
    middle = SIZE // 2
    for tokens in (1, 5, 64, 700, 4096):
        x = draw(tokens, dtype, seed=tokens)
        start = 4 * tokens  # at no rows' boundary
        shared.client.write(shared.address + start, to_bytes(x))
        status, text = shared.infer(x, output, start, middle)
        assert status == 200, text
        answer = shared.read(middle, tokens, output, dtype)
        assert_right(shared.engine, x, answer, output)
        behind = middle + answer.nbytes
        assert shared.client.read(shared.address + behind, 64) == bytes(64)
        shared.client.write(shared.address + middle, bytes(answer.nbytes))


@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("tokens", [(1, 2, 1, 3, 2, 1), (300, 1, 700, 64, 33, 500)], ids=str)
def test_rows_on_the_device_and_on_the_host_in_one_batch(
    shared: Shared, output: Output, tokens: tuple[int, ...]
) -> None:
    """Each way in with each way out, of every type."""
    engine, kinds = shared.engine, (torch.bfloat16, torch.float32, torch.float16)
    width = engine.model.width(output)
    memory = engine.open_device_memory(shared.handle, 0, SIZE)
    segments, at = [], 0
    try:
        for index, count in enumerate(tokens):
            x = draw(count, kinds[index % 3], seed=index)
            answer_dtype = WIRE[kinds[(index + 1) % 3]]
            rows = memoryview(bytearray(to_bytes(x)))
            answer = memoryview(bytearray(count * width * answer_dtype.itemsize))
            source: object = rows
            if index % 2:
                shared.client.write(shared.address + at, bytes(rows))
                source = DeviceWindow(memory, at, rows.nbytes)
                at += rows.nbytes
            target: object = answer
            if index % 3:
                target = DeviceWindow(memory, at, answer.nbytes)
                at += answer.nbytes
            segments.append(Segment(count, source, WIRE[x.dtype], target, answer_dtype))
        report = engine.run(Batch(LAYER, output, segments))
        assert all(0 < report.stages[stage] < 0.1 for stage in ("h2d", "compute", "d2h"))
        for index, segment in enumerate(segments):
            found = target = segment.output
            if isinstance(target, DeviceWindow):
                found = shared.client.read(shared.address + target.offset, target.nbytes)
            x = draw(segment.tokens, kinds[index % 3], seed=index)
            dtype = TORCH_DTYPES[segment.output_dtype]
            answer = torch.frombuffer(bytearray(found), dtype=dtype).view(segment.tokens, width)
            assert_right(engine, x, answer, output)
    finally:
        engine.close_device_memory(memory)


def test_rows_go_both_ways_at_once(shared: Shared) -> None:
    """Clients of the device and of HTTP, in each other's batches."""
    inputs = [draw(1 + 13 * index % 200, seed=index) for index in range(64)]
    slot = SIZE >> 6
    headers = {"Content-Type": "application/octet-stream"}
    for index, x in enumerate(inputs[::2]):
        shared.client.write(shared.address + index * slot, to_bytes(x))

    def one(index: int) -> tuple[int, bytes]:
        x = inputs[index]
        if index % 2:
            return shared.call("POST", f"/mlp?layer={LAYER}", to_bytes(x), **headers)
        at = index // 2 * slot
        return shared.infer(x, Output.MLP, at, at + slot // 2)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(len(inputs))))
    for index, (x, (status, body)) in enumerate(zip(inputs, found, strict=True)):
        assert status == 200, body
        if index % 2:
            answer = torch.frombuffer(bytearray(body), dtype=torch.bfloat16).view(-1, HIDDEN)
        else:
            at = index // 2 * slot + slot // 2
            answer = shared.read(at, len(x), Output.MLP, torch.bfloat16)
        assert_right(shared.engine, x, answer, Output.MLP)


def test_memory_that_is_forgotten_in_use_stays_open_until_then(shared: Shared) -> None:
    x, half = draw(2048), SIZE // 2
    shared.client.write(shared.address, to_bytes(x))
    stop = threading.Event()
    statuses: set[int] = set()

    def ask() -> None:
        while not stop.is_set():
            statuses.add(shared.infer(x, Output.MLP, 0, half)[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert shared.call("POST", f"{CUDA}/region/r/unregister")[0] == 200
        assert shared.register("r")[0] == 200
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses <= {200, 400}
    assert shared.infer(x, Output.MLP, 0, half)[0] == 200
    assert_right(shared.engine, x, shared.read(half, 2048, Output.MLP, torch.bfloat16), Output.MLP)
    assert len(shared.engine._shared._opened) == 1


def test_one_handle_under_two_names(shared: Shared) -> None:
    x, half = draw(700), SIZE // 2
    assert shared.register("again")[0] == 200
    shared.client.write(shared.address, to_bytes(x))
    status, text = shared.infer(x, Output.MLP, 0, 64, ("r", "again"))
    assert status == 400
    assert b"must not be the input's" in text
    assert shared.infer(x, Output.MLP, 0, half, ("r", "again"))[0] == 200
    assert shared.call("POST", f"{CUDA}/region/r/unregister")[0] == 200
    assert len(shared.engine._shared._opened) == 1
    shared.client.write(shared.address + half, bytes(x.numel() * 2))
    assert shared.infer(x, Output.MLP, 0, half, ("again", "again"))[0] == 200
    assert_right(shared.engine, x, shared.read(half, 700, Output.MLP, torch.bfloat16), Output.MLP)


def test_small_allocations_of_one_block_are_told_apart(shared: Shared) -> None:
    """The driver cuts them out of larger pieces, and a handle stands for all of a piece."""
    x, nbytes = draw(1), HIDDEN * 2
    (first, first_handle), (second, second_handle) = (
        shared.client.allocate(nbytes) for _ in range(2)
    )
    for name, handle in (("first", first_handle), ("second", second_handle)):
        assert shared.register(name, handle, nbytes=nbytes)[0] == 200
    for source, target, regions in (
        (first, second, ("first", "second")),
        (second, first, ("second", "first")),
    ):
        shared.client.write(source, to_bytes(x))
        status, text = shared.infer(x, Output.MLP, 0, 0, regions)
        assert status == 200, text
        answer = torch.frombuffer(bytearray(shared.client.read(target, nbytes)), dtype=x.dtype)
        assert_right(shared.engine, x, answer.view(1, -1), Output.MLP)
        assert shared.client.read(source, nbytes) == to_bytes(x)


def test_what_cannot_be_opened_is_refused_and_harms_nobody(shared: Shared) -> None:
    opened = len(shared.engine._shared._opened)
    for handle in (os.urandom(64), bytes(64)):
        status, text = shared.register("s", handle)
        assert status == 400, text
        assert b"cudaIpcOpenMemHandle: CUDA error: cudaError" in text
    status, text = shared.register("s", device=1)
    assert (status, b"must be 0, the engine's GPU, is 1" in text) == (400, True), text
    status, text = shared.register("s", nbytes=SIZE + 1)
    assert (status, b"what was allocated" in text) == (400, True), text
    status, text = shared.infer(draw(1), Output.MLP, 1, 4096)
    assert (status, b"must be a multiple of 2" in text) == (400, True), text
    assert len(shared.engine._shared._opened) == opened
    x = draw(5)
    shared.client.write(shared.address, to_bytes(x))
    assert shared.infer(x, Output.MLP, 0, SIZE // 2)[0] == 200
    answer = shared.read(SIZE // 2, 5, Output.MLP, torch.bfloat16)
    assert_right(shared.engine, x, answer, Output.MLP)
    assert DType.BF16 is shared.engine.model.dtype


@pytest.mark.parametrize("step", STEPS)
def test_what_clients_do_leaves_memory_to_be_allocated(step: str) -> None:
    """Whoever opens a handle of nothing, or of memory that has gone, must not pay for it later."""
    command = [sys.executable, "-m", "tests.engine.handle_steps", step]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.stdout == "fine\n", found.stderr
