"""Bytes that are no request at all, or barely one: never a 500, and the server lives."""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest

from service.http_protocol import MAX_HEADER_BYTES
from tests.e2e.raw_http import Closed, RawConnection, chunked, head
from tests.e2e.scrape import wait_at_rest
from tests.engines import expected
from tests.routes.bodies import LARGE, rows
from tests.servers import is_ready

_GARBAGE = [
    b"\x00\x01\x02\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the hello of TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST\r\n\r\n",
    b"POST /mlp HTTP\r\n\r\n",
    b"POST /mlp HTTP/9.9\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nno colon here\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nContent-Length: 9999999999999999999999\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 64\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /mlp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    b"POST /mlp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
    b"POST /mlp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\n\r\n",
    b"CONNECT host:1 HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("data", _GARBAGE, ids=range(len(_GARBAGE)))
def test_garbage_is_refused(service, data):
    with RawConnection(service.url) as connection:
        connection.send(data)
        try:
            assert connection.read().status == 400
        except Closed:
            pass
        else:
            assert connection.is_closed()
    wait_at_rest(service.url)
    assert is_ready(service.url)


@pytest.mark.parametrize(
    "request_head",
    [
        head("/nope?%ff=%fe", method="GET"),
        b"GET /nope HTTP/1.1\r\nHost: [\r\n\r\n",
        b"GET /nope HTTP/1.1\r\nHost: a:b:c@d/e?f#g\r\n\r\n",
        b"GET /nope HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2/models/%00/ready HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
        head("/mlp?model=%ED%A0%80", length=0),
        head("/mlp?model=" + "m" * 50_000, length=0),
    ],
)
def test_strange_paths_and_hosts_are_404(service, request_head):
    with RawConnection(service.url) as connection:
        connection.send(request_head)
        answer = connection.read()
    assert answer.status == 404
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "\xff\xfe"},
        {"content_type": ";;;"},
        {"accept": "\xff"},
        {"accept": ";q=" + "9" * 5000},
        {"accept": "a/b;" * 3000},
        {"accept_encoding": "\xff"},
        {"content_encoding": "\xff"},
        {"x_tensor_dtype": "\xff"},
        {"x_tensor_shape": "1," * 20_000},
        {"x_tensor_shape": "9" * 20_000},
        {"x_tensor_shape": "٣,16"},
        {"x_request_timeout_ms": "9" * 5000},
        {"x_request_id": "\xff" * 5000},
        {"authorization": "\xff"},
        {"inference_header_content_length": "\xff"},
    ],
    ids=lambda headers: next(iter(headers)),
)
@pytest.mark.parametrize("path", ["/mlp", "/v2/models/tiny/infer"])
def test_strange_headers_are_the_clients_fault(service, path, headers):
    given = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    with RawConnection(service.url) as connection:
        connection.send(head(path, length=0, **given))
        answer = connection.read()
    assert answer.status < 500
    assert len(answer.body) < 1000


def test_upgrade_is_declined_politely(service):
    with RawConnection(service.url) as connection:
        connection.send(head("/health/live", method="GET", connection="Upgrade", upgrade="h2c"))
        assert connection.read().status == 200


def test_random_bytes(service):
    for _ in range(100):
        with RawConnection(service.url, timeout_s=5) as connection:
            connection.send(os.urandom(200) + b"\r\n\r\n")
            with contextlib.suppress(Closed):
                assert connection.read().status == 400
    assert is_ready(service.url)


def test_random_damage_to_a_request_head(service):
    good = head("/mlp", length=0, x_tensor_dtype="fp32", accept="*/*")
    generator = random.Random(0)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(generator.randint(1, 3)):
            data[generator.randrange(len(data) - 4)] = generator.randrange(256)
        with RawConnection(service.url, timeout_s=0.3) as connection:
            connection.send(bytes(data))
            # Closed at once, or waiting for a body that the damage announced: both are fine.
            with contextlib.suppress(Closed, TimeoutError):
                assert connection.read().status < 500, bytes(data)
    wait_at_rest(service.url)


def test_what_is_not_http_gets_an_error_of_the_usual_form(service):
    with RawConnection(service.url) as connection:
        connection.send(b"POST /mlp HTTP/9.9\r\n\r\n")
        answer = connection.read()
    assert answer.status == 400
    assert answer.json() == {"error": "request: Invalid HTTP request received.", "code": "invalid"}


def test_headers_beyond_the_limit_are_refused_before_they_are_all_there(service):
    """A header of 64 MiB kept the parser, and with it everybody else, busy for seconds."""
    line = b"X-Filler: " + b"a" * 1000 + b"\r\n"
    with RawConnection(service.url) as connection:
        connection.send(b"POST /mlp HTTP/1.1\r\n")
        # Whatever arrives in one piece with the beginning is not counted.
        time.sleep(0.1)
        for _ in range(2 * MAX_HEADER_BYTES // len(line)):
            connection.send(line)
        answer = connection.read()
        assert answer.status == 431
        assert f"at most {MAX_HEADER_BYTES} bytes" in answer.json()["error"]
        # It has gone on without looking at what comes, for a moment.
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 20:
                connection.send(line)
        assert time.monotonic() - began < 20
    assert is_ready(service.url)


def test_large_headers_within_the_limit_are_served(service):
    with RawConnection(service.url) as connection:
        connection.send(b"GET /health/live HTTP/1.1\r\nHost: a\r\n")
        for _ in range(30):
            connection.send(b"X-Filler: " + b"a" * 1000 + b"\r\n")
        connection.send(b"\r\n")
        assert connection.read().status == 200


@pytest.mark.parametrize("tokens", [1, 2000, LARGE])
def test_a_body_behind_the_end_of_its_headers_is_no_header(service, tokens):
    """It was counted as one where the headers came in two pieces: 431 for a valid request."""
    x = rows(tokens)
    request = head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()
    with RawConnection(service.url) as connection:
        for cut in (60, 20):
            connection.send(request[:cut])
            time.sleep(0.05)
            connection.send(request[cut:])
            answer = connection.read()
            assert (answer.status, answer.body) == (200, expected(x, 0).tobytes())


def test_headers_that_begin_behind_a_body_are_not_as_long_as_that(service):
    x = rows(LARGE)
    request = head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()
    with RawConnection(service.url) as connection:
        connection.send(request + request[:40])
        time.sleep(0.05)
        connection.send(request[40:])
        for _ in range(2):
            assert connection.read().status == 200


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"POST /mlp HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 64\r\n\r\n",
        b"POST /mlp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: 4\r\n\r\nrows",
    ],
    ids=["no request", "two lengths", "upgrade"],
)
@pytest.mark.parametrize("tokens", [2, LARGE])
def test_a_refusal_does_not_overtake_answers(service, junk, tokens):
    """Who sends several requests at once takes the first answer for the first request's."""
    x = rows(tokens)
    request = head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()
    with RawConnection(service.url) as connection:
        connection.send(request * 2 + junk)
        for _ in range(2):
            answer = connection.read()
            assert (answer.status, answer.body) == (200, expected(x, 0).tobytes())
        assert connection.read().status == 400
        assert connection.is_closed()
    wait_at_rest(service.url)


def test_a_connection_whose_headers_do_not_come_is_closed(service, monkeypatch):
    monkeypatch.setattr("service.http_protocol.HEADER_TIMEOUT_S", 0.2)
    with RawConnection(service.url) as connection:
        connection.send(b"GET /health/live HTTP/1.1\r\nHost: a\r\n")
        assert connection.is_closed()


def test_headers_that_come_slowly_are_waited_for(service):
    with RawConnection(service.url) as connection:
        for piece in (b"GET /health/live HTTP/1.1\r\n", b"Host: a\r\n", b"\r\n"):
            connection.send(piece)
            time.sleep(0.05)
        assert connection.read().status == 200


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_with_a_body_is_refused_rather_than_answered_without_it(
    service, framing, protocol
):
    """The parser drops the body of such a request: it was answered with 200 and no rows."""
    body = b"\x00" * 64
    sent = chunked(body) if framing == "chunked" else body
    length = "Transfer-Encoding: chunked" if framing == "chunked" else "Content-Length: 64"
    request = (
        f"POST /mlp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        f"Upgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\nX-Tensor-Dtype: fp32\r\n"
        f"{length}\r\n\r\n"
    ).encode()
    for pieces in ([request + sent], [request, sent]):
        with RawConnection(service.url) as connection:
            for piece in pieces:
                with contextlib.suppress(ConnectionError):
                    connection.send(piece)
                time.sleep(0.02)
            answer = connection.read()
            assert answer.status == 400
            assert answer.json()["error"].startswith("Upgrade: must not be asked for")
            assert connection.is_closed()
    wait_at_rest(service.url)


def test_an_upgrade_without_a_body_is_ignored(service):
    with RawConnection(service.url) as connection:
        connection.send(
            b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            # The parser drops what is behind it, so that nobody must wait for an answer to that.
            + head("/health/live", method="GET")
        )
        answer = connection.read()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert connection.is_closed()


def test_a_transfer_coding_that_nobody_undoes_is_refused(service):
    with RawConnection(service.url) as connection:
        connection.send(
            b"POST /mlp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
            + chunked(b"\x00" * 64)
        )
        try:
            answer = connection.read()
        except Closed:
            return
    assert answer.status in (400, 415)
    if answer.status == 415:
        assert "Transfer-Encoding: must be chunked" in answer.json()["error"]
