import json
import socket

import pytest

from service.errors import StartError
from service.load.options import LoadOptions
from service.load.prepare import prepare
from service.load.runner import run_async
from tests.load.fake_server import FakeServer, Reply, error_reply, make_metadata


def prepared(server, **changes):
    return run_async(prepare(LoadOptions(url=server.url, timeout_s=1.0, **changes)))


def test_the_only_model_is_found():
    with FakeServer() as server:
        found = prepared(server)
    assert found.model_name == "tiny"
    assert (found.hidden_size, found.width) == (16, 16)
    assert found.server == {"name": "fake", "version": "1.2"}
    assert len(found.payloads) == len(found.expected) == 8
    targets = [request.target for request in server.requests]
    assert targets[:3] == ["/v2", "/v2/repository/index", "/v2/models/tiny"]
    assert set(targets[3:]) == {"/mlp?model=tiny&output=mlp"}


def test_a_named_model_is_not_searched_for():
    with FakeServer(models=["one", "t wo"]) as server:
        found = prepared(server, model="t wo")
    assert found.model_name == "t wo"
    assert server.requests[-1].target == "/mlp?model=t+wo&output=mlp"


@pytest.mark.parametrize("models", [[], ["a", "b"]])
def test_without_a_name_there_must_be_one_model(models):
    with FakeServer(models=models) as server, pytest.raises(StartError, match="model: must be na"):
        prepared(server)


def test_an_unknown_model_is_refused_with_the_services_words():
    with FakeServer() as server, pytest.raises(StartError) as caught:
        prepared(server, model="other")
    assert "/v2/models/other: answered 404 not_found: it is not_found" in str(caught.value)


def test_the_key_goes_with_every_request():
    with FakeServer() as server:
        prepared(server, api_key="open-sesame")
    assert {r.headers.get("authorization") for r in server.requests} == {"Bearer open-sesame"}


def test_a_prefix_goes_before_every_path():
    with FakeServer() as server, pytest.raises(StartError, match="/behind/v2: answered 404"):
        run_async(prepare(LoadOptions(url=server.url + "/behind/")))


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []},
        {"inputs": [{"name": "y", "shape": [-1, 16]}]},
        {"inputs": [{"name": "x"}]},
        {"inputs": [{"name": "x", "shape": [-1, -1]}]},
        {"inputs": [{"name": "x", "shape": []}]},
        {"outputs": None},
    ],
)
def test_metadata_without_the_tensors_is_refused(change):
    body = json.dumps({**make_metadata("tiny"), **change}).encode()
    documents = {"/v2/models/tiny": body}
    with FakeServer(documents=documents) as server, pytest.raises(StartError, match="must give"):
        prepared(server)


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/v2", b"<html>", r"http://127.0.0.1:\d+/v2: the answer is not JSON"),
        ("/v2", b"[]", r"/v2: must answer a JSON object, answers \[\]"),
        ("/v2/models/tiny", b"null", "/v2/models/tiny: must answer a JSON object, answers None"),
        ("/v2/repository/index", b"{}", r"model: must be named .*there are \[\]"),
        ("/v2/repository/index", b'[{"nom": "x"}, 3]', r"model: must be named .*there are \[\]"),
    ],
)
def test_documents_that_are_not_what_they_should_be(target, body, message):
    with (
        FakeServer(documents={target: body}) as server,
        pytest.raises(StartError, match=message),
    ):
        prepared(server)


def test_no_service_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StartError, match=rf"http://127.0.0.1:{port}/v2: .*refused"):
        run_async(prepare(LoadOptions(url=f"http://127.0.0.1:{port}")))


def test_a_service_that_accepts_and_says_nothing_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StartError, match=r"/v2: no whole answer within 0.2 s"):
            run_async(prepare(LoadOptions(url=url, timeout_s=0.2)))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (error_reply(503, "unavailable"), "answered 503 unavailable: it is unavailable"),
        (Reply(b"x", headers={"X-Tensor-Shape": "9,9"}), "must be 1,16, is 9,9"),
        (Reply(b"x" * 90, cut=60), "connection closed after"),
    ],
)
def test_a_lone_request_must_be_answered_rightly(reply, message):
    with (
        FakeServer(lambda *_: reply, spare=0) as server,
        pytest.raises(StartError, match=message),
    ):
        prepared(server)


def test_a_service_that_always_says_the_same_is_refused():
    replies = []

    def twist(number, request, reply):
        replies.append(reply)
        return replies[0]

    with FakeServer(twist, spare=0) as server, pytest.raises(StartError, match="same answer"):
        prepared(server)
