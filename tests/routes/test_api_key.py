"""With an API key, tensors and documents want it; health and metrics stay open."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine
from tests.routes.bodies import RAW, encode, rows, v2_body
from tests.servers import ServerThread

_KEY = "correct-horse"
_WRONG = [None, "", _KEY, "Bearer", "Bearer wrong-horse", f"Bearer {_KEY}x", f"Basic {_KEY}"]
_REQUESTS = {"/mlp": encode(rows(1), RAW), "/v2/models/tiny/infer": v2_body(rows(1))}
_DOCUMENTS = [
    ("GET", "/v2"),
    ("GET", "/v2/models/stats"),
    ("GET", "/v2/models/tiny"),
    ("GET", "/v2/models/tiny/config"),
    ("GET", "/v2/models/tiny/stats"),
    ("GET", "/v2/models/tiny/ready"),
    ("GET", "/v2/models/tiny/versions/1"),
    ("POST", "/v2/repository/index"),
]


@pytest.fixture(scope="module")
def locked():
    thread = ServerThread(FakeEngine(), api_key=_KEY)
    with thread, httpx.Client(base_url=thread.url) as client:
        yield client


def _headers(value: str | None) -> dict[str, str]:
    return {} if value is None else {"authorization": value}


def _assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert _KEY not in answer.text


@pytest.mark.parametrize("value", _WRONG)
def test_tensors_without_the_key_are_refused_and_counted(locked, value):
    url = str(locked.base_url)
    before = Scrape(url)
    for path, (body, headers) in _REQUESTS.items():
        _assert_refused(locked.post(path, content=body, headers={**headers, **_headers(value)}))
    after = Scrape(url)
    for api in ("mlp", "v2"):
        assert (
            after.outcomes(api)["unauthorized"] == before.outcomes(api).get("unauthorized", 0) + 1
        )


def test_refused_before_the_body_is_read(locked):
    with RawConnection(str(locked.base_url)) as connection:
        connection.send(head("/mlp", length=1 << 20, expect="100-continue"))
        assert connection.read().status == 401


@pytest.mark.parametrize(("method", "path"), _DOCUMENTS)
def test_documents_want_the_key(locked, method, path):
    _assert_refused(locked.request(method, path))
    # Schemes are compared without case (RFC 9110).
    good = locked.request(method, path, headers=_headers(f"bearer {_KEY}"))
    assert good.status_code == 200


def test_the_right_key_is_served(locked):
    for path, (body, headers) in _REQUESTS.items():
        answer = locked.post(path, content=body, headers={**headers, **_headers(f"Bearer {_KEY}")})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health/live", "/v2/health/ready"])
def test_probes_may_ask_for_the_head_alone(service, path):
    answer = service.client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/metrics"]
)
def test_health_and_metrics_stay_open(locked, path):
    answer = locked.get(path)
    assert answer.status_code == 200
    assert _KEY not in answer.text
