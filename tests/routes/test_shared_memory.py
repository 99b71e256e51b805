"""Tensors in clients' shared memory over HTTP, by Triton's own client and by hand."""

from __future__ import annotations

import json
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as triton_memory

from service import shared_tensors
from service.batching.arena import Slot
from service.batching.blocks import Block
from service.shared_region import Region
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, INTERMEDIATE, FakeEngine, expected
from tests.routes.bodies import rows
from tests.routes.conftest import Service
from tests.routes.sharing import INFER, SIZE, SYSTEM, infer, place, register
from tests.servers import ServerThread, wait_until
from tests.shared_objects import SharedObject, shared_object


def test_triton_client_as_it_is(sharing: Service) -> None:
    x = rows(5)
    handle = triton_memory.create_shared_memory_region("in", "/tilemlp-test-in", x.nbytes)
    answers = triton_memory.create_shared_memory_region("out", "/tilemlp-test-out", 4096)
    client = triton.InferenceServerClient(sharing.url.removeprefix("http://"))
    try:
        assert "system_shared_memory" in client.get_server_metadata()["extensions"]
        triton_memory.set_shared_memory_region(handle, [x])
        client.register_system_shared_memory("in/1", "/tilemlp-test-in", x.nbytes)
        client.register_system_shared_memory("out 2", "/tilemlp-test-out", 4096)
        assert client.get_system_shared_memory_status("in/1") == [
            {"name": "in/1", "key": "/tilemlp-test-in", "offset": 0, "byte_size": x.nbytes}
        ]
        assert len(client.get_system_shared_memory_status()) == 2
        for output, width, offset in (("mlp", HIDDEN, 0), ("gated", INTERMEDIATE, 1024)):
            tensor = triton.InferInput("x", x.shape, "FP32")
            tensor.set_shared_memory("in/1", x.nbytes)
            wanted = triton.InferRequestedOutput(output)
            wanted.set_shared_memory("out 2", 5 * width * 4, offset=offset)
            result = client.infer("tiny", [tensor], outputs=[wanted])
            entry = result.get_output(output)
            assert entry["parameters"]["shared_memory_region"] == "out 2"
            y = triton_memory.get_contents_as_numpy(answers, np.float32, entry["shape"], offset)
            np.testing.assert_array_equal(
                y, np.concatenate([-(x + 1), x + 1], 1) if output == "gated" else x + 1
            )
        client.unregister_system_shared_memory("in/1")
        assert [r["name"] for r in client.get_system_shared_memory_status()] == ["out 2"]
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="'in/1' is not"):
            client.get_system_shared_memory_status("in/1")
        with pytest.raises(InferenceServerException, match="CUDA shared memory: needs the fused"):
            client.register_cuda_shared_memory("c", b"handle", 0, 10)
    finally:
        client.close()
        for one in (handle, answers):
            triton_memory.destroy_shared_memory_region(one)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("off_loop", [False, True])
def test_input_and_output_in_one_region(
    sharing: Service,
    memory: SharedObject,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    off_loop: bool,
) -> None:
    if off_loop:
        monkeypatch.setattr(shared_tensors, "_OFF_LOOP_BYTES", 0)
    x = rows(7, dtype=dtype)
    memory.write(3, x.tobytes())
    before = Scrape(sharing.url)
    answer = infer(sharing, x, place(x.nbytes, 3), place(x.nbytes + 5, 9000))
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    assert output["shape"] == [7, HIDDEN]
    assert output["parameters"] == place(x.nbytes, 9000)
    assert memory.read(3, x.nbytes) == x.tobytes()
    assert memory.read(9000, x.nbytes + 5) == expected(x, 0).astype(dtype).tobytes() + bytes(5)
    after = Scrape(sharing.url)
    for direction in ("in", "out"):
        name = "mlp_shared_memory_moved_bytes_total"
        moved = after(name, direction=direction) - before(name, direction=direction)
        assert moved == x.nbytes
    assert after("mlp_shared_memory_regions") == 1
    assert after("mlp_shared_memory_bytes") == SIZE


def test_one_side_alone_may_be_shared(sharing: Service, memory: SharedObject) -> None:
    x = rows(3)
    memory.write(0, x.tobytes())
    answer = infer(sharing, x, place(x.nbytes), {"binary_data": False})
    np.testing.assert_array_equal(
        np.array(answer.json()["outputs"][0]["data"], "float32").reshape(3, HIDDEN), expected(x, 0)
    )
    answer = infer(sharing, x, place(x.nbytes), {"binary_data": True})
    assert answer.content.endswith(expected(x, 0).tobytes())
    text = json.dumps(
        {
            "inputs": [{"name": "x", "shape": [3, HIDDEN], "datatype": "FP32", "data": x.tolist()}],
            "outputs": [{"name": "mlp", "parameters": place(x.nbytes, 8000)}],
        }
    )
    assert sharing.client.post(INFER, content=text).status_code == 200
    assert memory.read(8000, x.nbytes) == expected(x, 0).tobytes()


def test_no_rows(sharing: Service, memory: SharedObject) -> None:
    answer = infer(sharing, rows(0), place(0), place(0, SIZE))
    assert answer.json()["outputs"][0]["shape"] == [0, HIDDEN]


def test_many_at_once_get_their_own_rows(sharing: Service, memory: SharedObject) -> None:
    inputs = [rows(1 + seed % 5, seed) for seed in range(60)]
    at = np.cumsum([0, *(x.nbytes for x in inputs)]).tolist()
    half = SIZE // 2
    for x, offset in zip(inputs, at, strict=False):
        memory.write(offset, x.tobytes())

    def one(x: np.ndarray, offset: int) -> httpx.Response:
        return infer(sharing, x, place(x.nbytes, offset), place(x.nbytes, half + offset))

    with ThreadPoolExecutor(12) as pool:
        for answer in pool.map(one, inputs, at[:-1]):
            assert answer.status_code == 200, answer.text
    for x, offset in zip(inputs, at, strict=False):
        assert memory.read(half + offset, x.nbytes) == expected(x, 0).tobytes()


class PinningEngine(FakeEngine):
    """Copies from 64 bytes on by itself, as a device does."""

    direct_bytes = 64

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[int] = []

    def pin(self, memory: memoryview) -> bool:
        self.pinned.append(memory.nbytes)
        return True

    def unpin(self, memory: memoryview) -> None:
        self.pinned.remove(memory.nbytes)


def test_an_engine_that_pins_reads_and_writes_where_the_client_does() -> None:
    engine = PinningEngine()
    with (
        ServerThread(engine, client_shared_memory=True) as thread,
        httpx.Client(base_url=thread.url) as client,
        shared_object(SIZE) as made,
    ):
        service = Service(thread.url, client, engine, thread.runtime)
        register(service, "r", made, offset=4096)
        assert engine.pinned == [SIZE - 4096]
        for tokens, dtype, direct in ((2, "float32", True), (2, "float16", False)):
            x = rows(tokens, dtype=dtype)
            made.write(4096, x.tobytes())
            assert infer(service, x, place(x.nbytes), place(x.nbytes, 8192)).status_code == 200
            assert made.read(4096 + 8192, x.nbytes) == expected(x, 0).astype(dtype).tobytes()
            (segment,) = engine.batches[-1].segments
            for view in (segment.input, segment.output):
                assert isinstance(view.obj, mmap.mmap) is direct
        engine.fail_next = RuntimeError("once")
        x = rows(2)
        assert infer(service, x, place(x.nbytes), place(x.nbytes, 8192)).status_code == 500
        wait_at_rest(thread.url)
        assert client.post(f"{SYSTEM}/unregister").status_code == 200
        wait_until(lambda: engine.pinned == [])


def test_slots_come_back_however_a_request_ends(
    sharing: Service, memory: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the input and one for the answer; the engine may outlive the client."""
    arena = sharing.runtime.admission._arena
    slots: list[Slot | Block] = []
    acquire = arena.acquire

    def noted(nbytes: int) -> Slot | Block:
        slots.append(acquire(nbytes))
        return slots[-1]

    def held() -> int:
        return sum(
            (slot._blocks if isinstance(slot, Block) else slot._block) is not None for slot in slots
        )

    monkeypatch.setattr(arena, "acquire", noted)
    x = rows(100)
    memory.write(0, x.tobytes())
    assert infer(sharing, x, place(x.nbytes), place(x.nbytes, 32768)).status_code == 200
    wait_until(lambda: held() == 0)
    assert len(slots) == 3, "body, input, answer"
    sharing.engine.gate.clear()
    try:
        with httpx.Client(base_url=sharing.url, timeout=0.3) as impatient:
            gone = Service(sharing.url, impatient, sharing.engine, sharing.runtime)
            with pytest.raises(httpx.ReadTimeout):
                infer(gone, x, place(x.nbytes), place(x.nbytes, 32768))
        assert held() == 2, "the engine still reads one and writes the other"
    finally:
        sharing.engine.gate.set()
    wait_until(lambda: held() == 0)


def test_who_leaves_while_the_input_is_read_is_not_computed(
    sharing: Service, memory: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    read = Region.read

    def slowly(region: Region, offset: int, target: memoryview) -> None:
        begun.set()
        assert go_on.wait(30)
        read(region, offset, target)

    monkeypatch.setattr(shared_tensors, "_OFF_LOOP_BYTES", 0)
    monkeypatch.setattr(Region, "read", slowly)
    before = Scrape(sharing.url).outcomes("v2").get("cancelled", 0)
    batches = len(sharing.engine.batches)
    # The only batch that may run is the blocker's, so that what is queued stays there.
    sharing.engine.gate.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            blocker = pool.submit(
                httpx.post,
                f"{sharing.url}/mlp",
                content=rows(1).tobytes(),
                headers={"x-tensor-dtype": "fp32"},
                timeout=30,
            )
            wait_until(lambda: len(sharing.engine.batches) == batches + 1)
            with httpx.Client(base_url=sharing.url, timeout=0.3) as impatient:
                gone = Service(sharing.url, impatient, sharing.engine, sharing.runtime)
                x = rows(100)
                with pytest.raises(httpx.ReadTimeout):
                    infer(gone, x, place(x.nbytes), place(x.nbytes, 32768))
            assert begun.wait(10)
            go_on.set()
            wait_until(lambda: Scrape(sharing.url).outcomes("v2").get("cancelled", 0) > before)
            sharing.engine.gate.set()
            assert blocker.result().status_code == 200
    finally:
        go_on.set()
        sharing.engine.gate.set()
    wait_at_rest(sharing.url)
    assert len(sharing.engine.batches) == batches + 1
