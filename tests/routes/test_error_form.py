"""Every error is {"error", "code"}, whoever raised it, and a fault of ours is never a 4xx."""

from __future__ import annotations

import json

import httpx
import pytest

from service.errors import InvalidRequest, TooLarge
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine
from tests.routes.bodies import post, rows
from tests.servers import ServerThread, get


def _assert_error(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document.keys() == {"error", "code"}
    assert document["code"] == code
    return document["error"]


@pytest.mark.parametrize(
    "path", ["/nope", "/index.html", "/mlp/", "/v2/models", "/v1/mlp", "/%ff%00"]
)
def test_unknown_path(service, path):
    answer = service.client.get(path)
    assert _assert_error(answer, 404, "not_found").startswith("GET /")


def test_unknown_path_that_looks_like_a_host(service):
    # httpx would ask for / instead.
    status, body = get(service.url, "//x")
    assert status == 404
    assert json.loads(body) == {"error": "GET //x: Not Found", "code": "not_found"}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/mlp", "POST"),
        ("PUT", "/mlp", "POST"),
        ("DELETE", "/v2/models/tiny/infer", "POST"),
        ("POST", "/health/live", "GET"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/metrics", "GET"),
    ],
)
def test_wrong_method_names_the_right_one(service, method, path, allow):
    answer = service.client.request(method, path)
    _assert_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/other",
        "/v2/models/other/config",
        "/v2/models/other/stats",
        "/v2/models/other/ready",
        "/v2/models/tiny/versions/2",
        "/v2/models/tiny/versions/2/ready",
    ],
)
def test_unknown_model_or_version(service, path):
    error = _assert_error(service.client.get(path), 404, "not_found")
    assert error.startswith(("model: must be 'tiny'", "version: must be '1'"))


def test_v2_inference_of_an_unknown_model_or_version(service):
    for path in ("/v2/models/other/infer", "/v2/models/tiny/versions/7/infer"):
        _assert_error(service.client.post(path, content=b"{}"), 404, "not_found")


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("uncorrectable ECC error"),
        MemoryError("host"),
        InvalidRequest("x: the engine's own word"),
        TooLarge("x: the engine's own word"),
        KeyError("x"),
        SystemExit(3),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_fault_of_the_engine_is_never_the_clients(fault):
    """19: an ECC error reported to clients as 400."""
    engine = FakeEngine()
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
        engine.fail_next = fault
        _assert_error(post(client, rows(2)), 500, "engine_error")
        assert post(client, rows(2)).status_code == 200
        scrape = Scrape(thread.url)
    assert scrape.outcomes("mlp") == {"engine_error": 1, "ok": 1}
    assert scrape.queue() == (0, 0, 0)


def test_bug_in_a_route_is_500_and_counted(monkeypatch):
    """An exception nobody foresaw: JSON, no traceback for the client, budget and slot come back."""
    with ServerThread(FakeEngine()) as thread, httpx.Client(base_url=thread.url) as client:
        with monkeypatch.context() as patch:

            def buggy(*_: object) -> None:
                raise ZeroDivisionError("secret")

            patch.setattr("service.routes.mlp.decode_raw", buggy)
            error = _assert_error(post(client, rows(2)), 500, "internal")
        assert error == "internal error: ZeroDivisionError"
        wait_at_rest(thread.url)
        assert post(client, rows(2)).status_code == 200
        assert Scrape(thread.url).outcomes("mlp") == {"internal": 1, "ok": 1}


def test_errors_of_the_framework_have_the_form_too():
    thread = ServerThread(FakeEngine())
    app = thread.server.config.app

    @app.get("/number/{value}")
    async def number(value: int) -> int:
        return 1 // value

    with thread, httpx.Client(base_url=thread.url) as client:
        assert client.get("/number/1").json() == 1
        _assert_error(client.get("/number/one"), 400, "invalid")
        _assert_error(client.get("/number/0"), 500, "internal")
