"""Tensors in clients' shared memory over HTTP, by Triton's own client and by hand."""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as triton_memory

from service.batching.arena import Slot
from service.routes import shared_tensors
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, INTERMEDIATE, FakeEngine, expected
from tests.routes.bodies import V2_DATATYPES, rows
from tests.routes.conftest import Service
from tests.servers import ServerThread, wait_until
from tests.shared_objects import SharedObject, shared_object

_INFER = "/v2/models/tiny/infer"
_SYSTEM = "/v2/systemsharedmemory"
SIZE = 1 << 16


@pytest.fixture(scope="module")
def sharing() -> Iterator[Service]:
    engine = FakeEngine()
    with (
        ServerThread(engine, client_shared_memory=True, max_queue_tokens=8192) as thread,
        httpx.Client(base_url=thread.url, timeout=30) as client,
    ):
        yield Service(thread.url, client, engine, thread.runtime)


@pytest.fixture
def memory(sharing: Service) -> Iterator[SharedObject]:
    """An object, all of it registered as `r`."""
    with shared_object(SIZE) as made:
        register(sharing, "r", made)
        yield made
    sharing.client.post(f"{_SYSTEM}/unregister")
    wait_at_rest(sharing.url)


def register(service: Service, name: str, made: SharedObject, offset: int = 0) -> None:
    body = {"key": made.key, "offset": offset, "byte_size": SIZE - offset}
    answer = service.client.post(f"{_SYSTEM}/region/{name}/register", json=body)
    assert answer.status_code == 200, answer.text


def place(nbytes: int, offset: int = 0, region: str = "r") -> dict[str, object]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def infer(
    service: Service,
    x: np.ndarray,
    source: dict[str, object],
    target: dict[str, object],
    output: str = "mlp",
) -> httpx.Response:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": V2_DATATYPES[x.dtype.name]}
    document = {
        "inputs": [{**tensor, "parameters": source}],
        "outputs": [{"name": output, "parameters": target}],
    }
    return service.client.post(_INFER, content=json.dumps(document))


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


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
        with pytest.raises(InferenceServerException, match="CUDA shared memory: is not served"):
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
    assert sharing.client.post(_INFER, content=text).status_code == 200
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


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (place(128, region="s"), {}, "inputs[0].parameters.shared_memory_region: must be regist"),
        (place(128), place(128, 500, "s"), "outputs[0].parameters.shared_memory_region: must be"),
        (place(128, SIZE - 127), {}, f"must end within the {SIZE} bytes of region 'r'"),
        (place(128), place(128, SIZE - 127), "outputs[0].parameters.shared_memory_byte_size: must"),
        (place(127), {}, "must be 128 for FP32 of shape [2, 16], is 127"),
        (place(128), place(127, 500), "must be at least 128 for the answer, is 127"),
        (place(128), place(128, 127), "the output's bytes must not be the input's"),
        (place(128, 100), place(128, 0, "again"), "the output's bytes must not be the input's"),
        (place(128, -1), {}, "shared_memory_offset: must be 0 to"),
    ],
)
def test_what_does_not_fit_is_refused(
    sharing: Service,
    memory: SharedObject,
    source: dict[str, object],
    target: dict[str, object],
    words: str,
) -> None:
    register(sharing, "again", memory, offset=200)
    users = [region._users for region in sharing.runtime.regions.status()]
    sentence = refusal(infer(sharing, rows(2), source, target or {"binary_data": True}))
    assert words in sentence
    assert memory.read(0, SIZE) == bytes(SIZE)
    assert [region._users for region in sharing.runtime.regions.status()] == users


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"key": "/../etc/passwd", "byte_size": 1}, "key: must be the name of a POSIX shared"),
        ({"key": "/tilemlp-test-none", "byte_size": 1}, "No such file"),
        ({"byte_size": 1}, "key, byte_size: must be given"),
        ({"key": "/x"}, "key, byte_size: must be given"),
        ({"key": 5, "byte_size": 1}, "key: must be a string"),
        ({"key": "/x", "byte_size": 1.0}, "byte_size: must be an integer"),
        ({"key": "/x", "byte_size": 1, "offset": -1}, "must not be negative"),
        ([], "JSON: must be an object"),
        ({"key": "x" * 5000}, "Content-Length: must be given and at most 4096"),
    ],
)
def test_what_is_no_registration_is_refused(sharing: Service, body: object, words: str) -> None:
    answer = sharing.client.post(f"{_SYSTEM}/region/s/register", json=body)
    assert words in refusal(answer)
    assert refusal(sharing.client.get(f"{_SYSTEM}/region/s/status"), 404)


def test_a_registration_of_unknown_length_is_refused(sharing: Service) -> None:
    answer = sharing.client.post(f"{_SYSTEM}/region/s/register", content=iter([b"{}"]))
    assert "Content-Length: must be given" in refusal(answer)


def test_an_object_that_was_truncated_costs_its_own_requests(
    sharing: Service, memory: SharedObject
) -> None:
    x = rows(2)
    with shared_object(SIZE) as other:
        register(sharing, "other", other)
        other.truncate(100)
        bad_in = infer(sharing, x, place(x.nbytes, 0, "other"), place(x.nbytes, 500))
        assert "must lie within its object" in refusal(bad_in)
        bad_out = infer(sharing, x, place(x.nbytes), place(x.nbytes, 0, "other"))
        assert "must lie within its object" in refusal(bad_out)
        assert other.path.stat().st_size == 100
    assert infer(sharing, x, place(x.nbytes), place(x.nbytes, 500)).status_code == 200


def test_clients_that_truncate_under_load_end_nobody(
    sharing: Service, memory: SharedObject
) -> None:
    x = rows(100)
    stop = threading.Event()
    with shared_object(SIZE) as other:
        register(sharing, "other", other)

        def flicker() -> None:
            while not stop.is_set():
                other.truncate(0)
                other.truncate(SIZE)

        thread = threading.Thread(target=flicker)
        thread.start()
        statuses = set()
        for index in range(100):
            source = place(x.nbytes, 0, "other" if index % 2 else "r")
            target = place(x.nbytes, 30_000, "r" if index % 2 else "other")
            statuses.add(infer(sharing, x, source, target).status_code)
        stop.set()
        thread.join()
    assert statuses <= {200, 400}
    assert infer(sharing, x, place(x.nbytes), place(x.nbytes, 30_000)).status_code == 200


def test_a_region_that_is_forgotten_stays_for_the_request_that_uses_it(
    sharing: Service, memory: SharedObject
) -> None:
    x = rows(2)
    memory.write(0, x.tobytes())
    sharing.engine.gate.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            started = len(sharing.engine.batches)
            future = pool.submit(infer, sharing, x, place(x.nbytes), place(x.nbytes, 500))
            wait_until(lambda: len(sharing.engine.batches) > started)
            assert sharing.client.post(f"{_SYSTEM}/region/r/unregister").status_code == 200
            assert "must be registered" in refusal(
                infer(sharing, x, place(x.nbytes), place(x.nbytes, 500))
            )
            sharing.engine.gate.set()
            assert future.result().status_code == 200
    finally:
        sharing.engine.gate.set()
    assert memory.read(500, x.nbytes) == expected(x, 0).tobytes()


def test_shared_rows_count_in_the_queue_like_others(sharing: Service, memory: SharedObject) -> None:
    x = rows(1000)
    sharing.engine.gate.clear()
    try:
        with ThreadPoolExecutor(12) as pool:
            futures = [
                pool.submit(infer, sharing, x, place(x.nbytes), {"binary_data": True})
                for _ in range(12)
            ]
            # One batch of a row or more runs, 8192 rows may wait.
            wait_until(lambda: any(future.done() for future in futures))
            full = next(future.result() for future in futures if future.done())
            assert "passes max_queue_tokens 8192" in refusal(full, 429)
            requests, tokens, nbytes = Scrape(sharing.url).queue()
            assert tokens == 1000 * requests
            assert nbytes == x.nbytes * requests
            sharing.engine.gate.set()
            statuses = sorted(future.result().status_code for future in futures)
    finally:
        sharing.engine.gate.set()
    assert statuses[0] == 200
    assert set(statuses) == {200, 429}


def test_limits_are_those_of_a_body() -> None:
    with (
        ServerThread(
            FakeEngine(), client_shared_memory=True, max_body_bytes=1024, max_batch_tokens=32
        ) as thread,
        httpx.Client(base_url=thread.url) as client,
        shared_object(SIZE) as made,
    ):
        service = Service(thread.url, client, thread.runtime.engine, thread.runtime)
        register(service, "r", made)
        answer = infer(service, rows(17), place(17 * 64), {"binary_data": True})
        assert "must be at most 1024, is 1088; raise max_body_bytes" in refusal(answer, 413)
        answer = infer(service, rows(33), place(33 * 64), {"binary_data": True})
        assert "max_batch_tokens" in refusal(answer, 413)
        assert infer(service, rows(16), place(1024), {"binary_data": True}).status_code == 200
        wait_at_rest(thread.url)


def test_where_it_is_not_allowed_it_says_how_it_would_be(service: Service) -> None:
    assert "system_shared_memory" not in service.client.get("/v2").json()["extensions"]
    for method, path in (
        ("GET", "status"),
        ("POST", "unregister"),
        ("POST", "region/r/register"),
    ):
        answer = service.client.request(method, f"{_SYSTEM}/{path}")
        assert "MLP_CLIENT_SHARED_MEMORY" in refusal(answer, 404)
    answer = infer(service, rows(2), place(128), {"binary_data": True})
    assert "MLP_CLIENT_SHARED_MEMORY" in refusal(answer)


def test_registering_wants_the_key() -> None:
    with ServerThread(FakeEngine(), client_shared_memory=True, api_key="12345678") as thread:
        for method, path in (("GET", "status"), ("POST", "region/r/register")):
            answer = httpx.request(method, f"{thread.url}{_SYSTEM}/{path}")
            assert answer.status_code == 401


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
        assert client.post(f"{_SYSTEM}/unregister").status_code == 200
        wait_until(lambda: engine.pinned == [])


def test_slots_come_back_however_a_request_ends(
    sharing: Service, memory: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the input and one for the answer; the engine may outlive the client."""
    arena = sharing.runtime.admission._arena
    slots: list[Slot] = []
    acquire = arena.acquire

    def noted(nbytes: int) -> Slot:
        slots.append(acquire(nbytes))
        return slots[-1]

    def held() -> int:
        return sum(slot._block is not None for slot in slots)

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
