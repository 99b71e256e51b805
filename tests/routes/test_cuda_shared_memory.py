"""Tensors in a GPU's memory over HTTP, with an engine that has such memory only in name."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from service.engine.base import Batch, BatchReport, DeviceWindow
from service.errors import InvalidRequest
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, INTERMEDIATE, FakeEngine, expected
from tests.routes.bodies import rows
from tests.routes.conftest import Service
from tests.routes.sharing import INFER, SIZE, infer, place, refusal, register
from tests.servers import ServerThread, wait_until
from tests.shared_objects import shared_object

CUDA = "/v2/cudasharedmemory"


class Memory:
    """Bytes that stand for some of a GPU's.

    Attributes:
        users: How often it is open.
    """

    def __init__(self, nbytes: int) -> None:
        self.content = bytearray(nbytes)
        self.address = 256 * id(self)
        self.users = 0

    def view(self, window: DeviceWindow) -> memoryview:
        assert self.users, "closed"
        return memoryview(self.content)[window.offset : window.offset + window.nbytes]


class GpuEngine(FakeEngine):
    """Opens memory by handles that `share` gave."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[bytes, Memory] = {}
        self._lock = threading.Lock()

    def share(self, nbytes: int = SIZE) -> tuple[Memory, bytes]:
        handle = os.urandom(64)
        self.shared[handle] = Memory(nbytes)
        return self.shared[handle], handle

    def open_device_memory(self, handle: bytes, device: int, nbytes: int) -> Memory:
        if device != 0:
            raise InvalidRequest(f"device_id: must be 0, the engine's GPU, is {device}")
        if handle not in self.shared:
            raise InvalidRequest("raw_handle: must be one that the service can open, is not")
        with self._lock:
            self.shared[handle].users += 1
        return self.shared[handle]

    def close_device_memory(self, memory: Memory) -> None:
        with self._lock:
            memory.users -= 1

    def run(self, batch: Batch) -> BatchReport:
        """As the other engine, on what the windows stand for."""

        def here(one: memoryview | DeviceWindow) -> memoryview:
            return one.memory.view(one) if isinstance(one, DeviceWindow) else one

        segments = [
            segment._replace(input=here(segment.input), output=here(segment.output))
            for segment in batch.segments
        ]
        report = super().run(replace(batch, segments=segments))
        self.batches[-1] = batch
        return report


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "2 workers"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Service]:
    engine = GpuEngine()
    with (
        ServerThread(engine, client_shared_memory=True, workers=request.param) as thread,
        httpx.Client(base_url=thread.url, timeout=30) as client,
    ):
        yield Service(thread.url, client, engine, thread.runtime)


@pytest.fixture
def memory(gpu: Service) -> Iterator[Memory]:
    """All of it registered as `c`."""
    made, handle = gpu.engine.share()
    assert register_cuda(gpu, "c", handle).status_code == 200
    yield made
    assert gpu.client.post(f"{CUDA}/unregister").status_code == 200
    assert made.users == 0
    wait_at_rest(gpu.url)


def register_cuda(service: Service, name: str, handle: bytes, **changed: object) -> httpx.Response:
    body = {
        "raw_handle": {"b64": base64.b64encode(handle).decode()},
        "device_id": 0,
        "byte_size": SIZE,
    }
    return service.client.post(f"{CUDA}/region/{name}/register", json={**body, **changed})


def test_triton_client_as_it_is(gpu: Service) -> None:
    x = rows(5)
    memory, handle = gpu.engine.share()
    memory.content[: x.nbytes] = x.tobytes()
    client = triton.InferenceServerClient(gpu.url.removeprefix("http://"))
    try:
        assert {"system_shared_memory", "cuda_shared_memory"} <= set(
            client.get_server_metadata()["extensions"]
        )
        # As its get_raw_handle gives it.
        client.register_cuda_shared_memory("c/1", base64.b64encode(handle), 0, SIZE)
        shown = {"name": "c/1", "device_id": 0, "byte_size": SIZE}
        assert client.get_cuda_shared_memory_status("c/1") == [shown]
        assert client.get_cuda_shared_memory_status() == [shown]
        assert client.get_system_shared_memory_status() == []
        for output, width, offset in (("mlp", HIDDEN, 4096), ("gated", INTERMEDIATE, 8192)):
            tensor = triton.InferInput("x", x.shape, "FP32")
            tensor.set_shared_memory("c/1", x.nbytes)
            wanted = triton.InferRequestedOutput(output)
            wanted.set_shared_memory("c/1", 5 * width * 4, offset=offset)
            result = client.infer("tiny", [tensor], outputs=[wanted])
            entry = result.get_output(output)
            assert entry["parameters"]["shared_memory_region"] == "c/1"
            y = np.frombuffer(memory.content, np.float32, 5 * width, offset).reshape(5, width)
            np.testing.assert_array_equal(
                y, np.concatenate([-(x + 1), x + 1], 1) if output == "gated" else x + 1
            )
        client.unregister_cuda_shared_memory("c/1")
        assert client.get_cuda_shared_memory_status() == []
        assert memory.users == 0
        with pytest.raises(InferenceServerException, match="'c/1' is not"):
            client.get_cuda_shared_memory_status("c/1")
        client.unregister_cuda_shared_memory()
    finally:
        client.close()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_byte_of_them_passes_through_the_service(
    gpu: Service, memory: Memory, dtype: str
) -> None:
    x = rows(7, dtype=dtype)
    memory.content[4 : 4 + x.nbytes] = x.tobytes()
    before = Scrape(gpu.url)
    answer = infer(gpu, x, place(x.nbytes, 4, "c"), place(x.nbytes + 5, 9000, "c"))
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    assert output["parameters"] == place(x.nbytes, 9000, "c")
    found = bytes(memory.content[9000 : 9000 + x.nbytes + 5])
    assert found == expected(x, 0).astype(dtype).tobytes() + bytes(5)
    (segment,) = gpu.engine.batches[-1].segments
    assert isinstance(segment.input, DeviceWindow)
    assert isinstance(segment.output, DeviceWindow)
    after = Scrape(gpu.url)
    for direction in ("in", "out"):
        name = "mlp_shared_memory_moved_bytes_total"
        moved = after(name, direction=direction) - before(name, direction=direction)
        assert moved == x.nbytes
    assert after("mlp_shared_memory_regions") == 1
    assert after("mlp_shared_memory_bytes") == SIZE


def test_one_side_alone_may_be_on_the_device(gpu: Service, memory: Memory) -> None:
    x = rows(3)
    memory.content[: x.nbytes] = x.tobytes()
    answer = infer(gpu, x, place(x.nbytes, 0, "c"), {"binary_data": True})
    assert answer.content.endswith(expected(x, 0).tobytes())
    text = json.dumps(
        {
            "inputs": [{"name": "x", "shape": [3, HIDDEN], "datatype": "FP32", "data": x.tolist()}],
            "outputs": [{"name": "mlp", "parameters": place(x.nbytes, 8000, "c")}],
        }
    )
    assert gpu.client.post(INFER, content=text).status_code == 200
    assert memory.content[8000 : 8000 + x.nbytes] == expected(x, 0).tobytes()
    with shared_object(SIZE) as made:
        register(gpu, "s", made)
        assert infer(gpu, x, place(x.nbytes, 0, "c"), place(x.nbytes, 8, "s")).status_code == 200
        assert made.read(8, x.nbytes) == expected(x, 0).tobytes()
        assert infer(gpu, x, place(x.nbytes, 8, "s"), place(x.nbytes, 16, "c")).status_code == 200
        assert memory.content[16 : 16 + x.nbytes] == expected(expected(x, 0), 0).tobytes()
        gpu.client.post("/v2/systemsharedmemory/unregister")


def test_no_rows(gpu: Service, memory: Memory) -> None:
    answer = infer(gpu, rows(0), place(0, 0, "c"), place(0, SIZE, "c"))
    assert answer.json()["outputs"][0]["shape"] == [0, HIDDEN]


def test_many_at_once_get_their_own_rows(gpu: Service, memory: Memory) -> None:
    inputs = [rows(1 + seed % 5, seed) for seed in range(60)]
    at = np.cumsum([0, *(x.nbytes for x in inputs)]).tolist()
    half = SIZE // 2
    for x, offset in zip(inputs, at, strict=False):
        memory.content[offset : offset + x.nbytes] = x.tobytes()

    def one(index: int) -> httpx.Response:
        x, offset = inputs[index], at[index]
        target = place(x.nbytes, half + offset, "c") if index % 3 else {"binary_data": True}
        return infer(gpu, x, place(x.nbytes, offset, "c"), target)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(len(inputs))))
    for index, (x, answer) in enumerate(zip(inputs, answers, strict=True)):
        assert answer.status_code == 200, answer.text
        found = answer.content[-x.nbytes :]
        if index % 3:
            found = memory.content[half + at[index] : half + at[index] + x.nbytes]
        assert found == expected(x, 0).tobytes()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (place(128, region="d"), {}, "inputs[0].parameters.shared_memory_region: must be regist"),
        (place(128, SIZE - 127, "c"), {}, f"must end within the {SIZE} bytes of region 'c'"),
        (place(128, 2, "c"), {}, "shared_memory_offset: must be a multiple of 4 for fp32"),
        (place(128, 0, "c"), place(128, 129, "c"), "outputs[0].parameters.shared_memory_offset"),
        (place(128, 0, "c"), place(128, 124, "c"), "the output's bytes must not be the input's"),
        (place(128, 0, "c"), place(128, 0, "again"), "the output's bytes must not be the input's"),
    ],
)
def test_what_does_not_fit_is_refused(
    gpu: Service,
    memory: Memory,
    source: dict[str, object],
    target: dict[str, object],
    words: str,
) -> None:
    handle = next(handle for handle, made in gpu.engine.shared.items() if made is memory)
    assert register_cuda(gpu, "again", handle).status_code == 200
    assert words in refusal(infer(gpu, rows(2), source, target or {"binary_data": True}))
    assert memory.content == bytes(SIZE)
    assert memory.users == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"raw_handle": None}, "raw_handle.b64: must be given"),
        ({"raw_handle": "abc"}, "raw_handle: must be an object"),
        ({"raw_handle": {"b64": 5}}, "raw_handle.b64: must be a string"),
        (
            {"raw_handle": {"b64": "!"}},
            "of a CUDA IPC handle in base64, is '!'",
        ),
        ({"raw_handle": {"b64": "é"}}, "must be the 64 bytes of a CUDA IPC handle in base64"),
        ({"raw_handle": {"b64": "AAAA"}}, "must be the 64 bytes of a CUDA IPC handle in base64"),
        ({"raw_handle": {"b64": "A" * 85 + "="}}, "must be the 64 bytes of a CUDA IPC handle"),
        ({"raw_handle": {"b64": "A" * 86 + "=="}}, "must be one that the service can open"),
        ({"device_id": 1}, "device_id: must be 0, the engine's GPU, is 1"),
        ({"device_id": True}, "device_id: must be an integer"),
        ({"device_id": None}, "raw_handle, device_id, byte_size: must be given"),
        ({"byte_size": 0}, "byte_size: must be 1 or more, is 0"),
        ({"byte_size": None}, "raw_handle, device_id, byte_size: must be given"),
    ],
)
def test_what_is_no_registration_is_refused(
    gpu: Service, changed: dict[str, object], words: str
) -> None:
    _, handle = gpu.engine.share()
    assert words in refusal(register_cuda(gpu, "d", handle, **changed))
    assert refusal(gpu.client.get(f"{CUDA}/region/d/status"), 404)


def test_a_name_that_is_too_long_is_refused(gpu: Service, memory: Memory) -> None:
    _, handle = gpu.engine.share()
    path = f"{CUDA}/region/{'c' * 256}"
    words = "region: must have at most 255 characters, has 256"
    assert words in refusal(register_cuda(gpu, "c" * 256, handle))
    assert words in refusal(gpu.client.get(f"{path}/status"))
    assert words in refusal(gpu.client.post(f"{path}/unregister"))


def test_memory_that_is_forgotten_stays_open_for_the_request_that_uses_it(
    gpu: Service, memory: Memory
) -> None:
    x = rows(2)
    memory.content[: x.nbytes] = x.tobytes()
    gpu.engine.gate.clear()
    try:
        with ThreadPoolExecutor(2) as pool:
            started = len(gpu.engine.batches)
            future = pool.submit(infer, gpu, x, place(x.nbytes, 0, "c"), place(x.nbytes, 500, "c"))
            wait_until(lambda: len(gpu.engine.batches) > started)
            forgetting = pool.submit(gpu.client.post, f"{CUDA}/region/c/unregister")
            wait_until(lambda: gpu.client.get(f"{CUDA}/status").json() == [])
            answer = infer(gpu, x, place(x.nbytes, 0, "c"), place(x.nbytes, 500, "c"))
            assert "must be registered" in refusal(answer)
            assert not forgetting.done()
            assert memory.users == 1
            gpu.engine.gate.set()
            assert future.result().status_code == 200
            assert forgetting.result().status_code == 200
            assert memory.users == 0
    finally:
        gpu.engine.gate.set()
    assert memory.content[500 : 500 + x.nbytes] == expected(x, 0).tobytes()


def test_a_batch_that_fails_is_tried_again_from_the_device(gpu: Service, memory: Memory) -> None:
    gpu.engine.fail_next = RuntimeError("once")
    x = rows(2)
    answer = infer(gpu, x, place(x.nbytes, 0, "c"), place(x.nbytes, 500, "c"))
    assert answer.status_code == 500
    assert memory.content == bytes(SIZE)


def test_limits_are_those_of_a_body() -> None:
    engine = GpuEngine()
    with (
        ServerThread(engine, client_shared_memory=True, max_body_bytes=1024) as thread,
        httpx.Client(base_url=thread.url) as client,
    ):
        service = Service(thread.url, client, engine, thread.runtime)
        memory, handle = engine.share()
        register_cuda(service, "c", handle)
        answer = infer(service, rows(17), place(17 * 64, 0, "c"), {"binary_data": True})
        assert "must be at most 1024, is 1088; raise max_body_bytes" in refusal(answer, 413)
        wait_at_rest(thread.url)
    # At the service's end too.
    wait_until(lambda: memory.users == 0)


def test_another_engine_says_what_it_would_take(sharing: Service) -> None:
    assert "cuda_shared_memory" not in sharing.client.get("/v2").json()["extensions"]
    for method, path in (("GET", "status"), ("POST", "unregister"), ("POST", "region/r/register")):
        answer = sharing.client.request(method, f"{CUDA}/{path}")
        words = "CUDA shared memory: needs the fused engine on one GPU, this is fake on nowhere"
        assert words in refusal(answer, 404)


def test_where_it_is_not_allowed_it_says_how_it_would_be(service: Service) -> None:
    for method, path in (("GET", "status"), ("POST", "unregister"), ("POST", "region/r/register")):
        answer = service.client.request(method, f"{CUDA}/{path}")
        assert "MLP_CLIENT_SHARED_MEMORY" in refusal(answer, 404)


def test_registering_wants_the_key() -> None:
    with ServerThread(GpuEngine(), client_shared_memory=True, api_key="12345678") as thread:
        for method, path in (("GET", "status"), ("POST", "region/r/register")):
            answer = httpx.request(method, f"{thread.url}{CUDA}/{path}")
            assert answer.status_code == 401
