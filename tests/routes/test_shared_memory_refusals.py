"""What shared memory must not be used for, and what happens to it meanwhile."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.shared_region import Region
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine, expected
from tests.routes.bodies import rows
from tests.routes.conftest import Service
from tests.routes.sharing import SIZE, SYSTEM, infer, place, refusal, register
from tests.servers import ServerThread, wait_until
from tests.shared_objects import SharedObject, shared_object


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
    users = [region._users for region in sharing.runtime.region_table.status(Region)]
    sentence = refusal(infer(sharing, rows(2), source, target or {"binary_data": True}))
    assert words in sentence
    assert memory.read(0, SIZE) == bytes(SIZE)
    assert [region._users for region in sharing.runtime.region_table.status(Region)] == users


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
    answer = sharing.client.post(f"{SYSTEM}/region/s/register", json=body)
    assert words in refusal(answer)
    assert refusal(sharing.client.get(f"{SYSTEM}/region/s/status"), 404)


# The channel to the engine's process would refuse, cut or take them.
@pytest.mark.parametrize("length", [256, 40_000, 150_000, 300_000])
def test_a_name_that_is_too_long_costs_its_own_request(
    sharing: Service, memory: SharedObject, length: int
) -> None:
    x, name = rows(2), "r" * length
    words = f"region: must have at most 255 characters, has {length}"
    for source, target in ((place(128, 0, name), {}), (place(128), place(128, 500, name))):
        assert words in refusal(infer(sharing, x, source, target or {"binary_data": True}))
    if length < 1 << 16:  # what httpx takes for a path
        path = f"{SYSTEM}/region/{name}"
        assert words in refusal(sharing.client.get(f"{path}/status"))
        assert words in refusal(sharing.client.post(f"{path}/unregister"))
        body = {"key": memory.key, "byte_size": 1}
        assert words in refusal(sharing.client.post(f"{path}/register", json=body))
    assert infer(sharing, x, place(128), place(128, 500)).status_code == 200
    assert sharing.client.get("/metrics", timeout=5).status_code == 200


def test_the_longest_name_and_key_are_taken(sharing: Service, memory: SharedObject) -> None:
    name = "\U0001f600" * 255
    register(sharing, name, memory)
    x = rows(2)
    assert infer(sharing, x, place(128, 0, name), place(128, 500, name)).status_code == 200
    body = json.dumps({"key": "é" * 2000, "byte_size": 1}, ensure_ascii=False)
    answer = sharing.client.post(f"{SYSTEM}/region/s/register", content=body)
    assert "key: must be the name of" in refusal(answer)


def test_a_registration_of_unknown_length_is_refused(sharing: Service) -> None:
    answer = sharing.client.post(f"{SYSTEM}/region/s/register", content=iter([b"{}"]))
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
            assert sharing.client.post(f"{SYSTEM}/region/r/unregister").status_code == 200
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

            def all_count() -> bool:
                requests, tokens, nbytes = Scrape(sharing.url).queue()
                return (tokens, nbytes) == (1000 * requests, x.nbytes * requests) != (0, 0)

            # Some may still be arriving, with their JSON alone.
            wait_until(all_count)
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
        answer = service.client.request(method, f"{SYSTEM}/{path}")
        assert "MLP_CLIENT_SHARED_MEMORY" in refusal(answer, 404)
    answer = infer(service, rows(2), place(128), {"binary_data": True})
    assert "MLP_CLIENT_SHARED_MEMORY" in refusal(answer)


def test_registering_wants_the_key() -> None:
    with ServerThread(FakeEngine(), client_shared_memory=True, api_key="12345678") as thread:
        for method, path in (("GET", "status"), ("POST", "region/r/register")):
            answer = httpx.request(method, f"{thread.url}{SYSTEM}/{path}")
            assert answer.status_code == 401
