"""Everything that a service can do wrong is seen, counted under its name and makes the run fail."""

from dataclasses import replace

import pytest

from service.load.options import LoadOptions
from service.load.run import run_load
from tests.load.fake_server import FakeServer, Reply, right_reply, with_values


def swap_rows(number, request, reply):
    return with_values(reply, request, lambda values: values[::-1])


def put_nan(number, request, reply):
    return replace(reply, body=reply.body[:-2] + b"\xc0\x7f")


def truncate(number, request, reply):
    return replace(reply, body=reply.body[:-2])


def drop_a_row(number, request, reply):
    headers = {**reply.headers, "X-Tensor-Shape": "2,16"}
    return replace(reply, body=reply.body[: len(reply.body) * 2 // 3], headers=headers)


def lose_shape(number, request, reply):
    return replace(reply, headers={**reply.headers, "X-Tensor-Shape": None})


def change_dtype(number, request, reply):
    return replace(reply, headers={**reply.headers, "X-Tensor-Dtype": "fp16"})


def double(number, request, reply):
    return with_values(reply, request, lambda values: values * 2)


def answer_emptily(number, request, reply):
    return Reply()


def cut_body(number, request, reply):
    return replace(reply, cut=len(reply.raw()) - 10)


def cut_head(number, request, reply):
    return replace(reply, cut=20)


def say_nothing(number, request, reply):
    return replace(reply, cut=0)


def speak_otherwise(number, request, reply):
    return replace(reply, status="two hundred")


def answer_twice(number, request, reply):
    return replace(reply, body=reply.raw() + reply.body, headers={"Content-Length": 0})


@pytest.mark.parametrize(
    ("twist", "fault", "message"),
    [
        (swap_rows, "wrong_values", "elements off by more than 2^-6"),
        (double, "wrong_values", "of 48 elements off"),
        (put_nan, "not_finite", "NaN or infinity"),
        (truncate, "wrong_length", "body: must have 96 bytes, has 94"),
        (drop_a_row, "wrong_shape", "X-Tensor-Shape: must be 3,16, is 2,16"),
        (lose_shape, "wrong_shape", "X-Tensor-Shape: must be 3,16, is missing"),
        (answer_emptily, "wrong_shape", "is missing"),
        (change_dtype, "wrong_dtype", "must be bf16, is 'fp16'"),
        (cut_body, "reset", "connection closed after 86 of 96 body bytes"),
        (cut_head, "reset", "connection closed after no head"),
        (say_nothing, "reset", "connection closed after no head"),
        (speak_otherwise, "protocol", "not HTTP"),
        (answer_twice, "protocol", "not HTTP"),
    ],
)
@pytest.mark.parametrize("is_always", [True, False], ids=["always", "once in five"])
def test_a_fault_is_counted_under_its_name(load, twist, fault, message, is_always):
    def sometimes(number, request, reply):
        return twist(number, request, reply) if is_always or number % 5 == 3 else reply

    # Long enough for five requests on a machine that is busy otherwise.
    result, _ = load(sometimes, rows=((3, 1.0),), duration_s=0.1 if is_always else 0.5)
    assert not result.ok
    assert set(result.faults) == {fault}
    assert result.faults[fault] == result.errors
    is_wrong_answer = fault not in ("reset", "protocol")
    assert result.wrong_answers == (result.errors if is_wrong_answer else 0)
    assert message in result.examples[fault]
    if is_always:
        assert result.latency is None
        assert result.errors == result.sent
    else:
        assert result.errors == pytest.approx(result.sent / 5, abs=1)
        # Right answers alone have a latency.
        assert result.latency.count == result.sent - result.errors


def test_answers_that_went_to_each_others_clients_are_caught(load):
    """Two requests at a time, each of which gets the answer to the other."""
    waiting = []

    def twist(number, request, reply):
        waiting.append(request)
        other = waiting.pop(0) if len(waiting) > 2 else request
        return right_reply(other)

    result, _ = load(twist, connections=2)
    assert result.wrong_answers > 0.5 * result.sent
    assert set(result.faults) == {"wrong_values"}


def test_an_answer_that_never_comes_is_a_timeout(load):
    def twist(number, request, reply):
        return replace(reply, delay_s=30.0) if number == 1 else reply

    result, server = load(twist, connections=2, timeout_s=0.2, duration_s=0.6)
    assert result.faults == {"timeout": 1}
    assert result.examples["timeout"] == "no whole answer within 0.2 s"
    assert result.latency.max_s < 0.2
    assert len({r.peer for r in server.mlp_requests()[8:]}) == 3  # the connection was replaced


def test_the_end_waits_for_what_is_under_way_but_no_longer_than_the_timeout(load):
    def slow(number, request, reply):
        return replace(reply, delay_s=0.5)

    result, _ = load(slow, connections=2, duration_s=0.2, timeout_s=2.0)
    assert result.ok
    assert result.sent == result.latency.count == 2
    assert result.requests_per_s == 0  # they came too late for that
    result, _ = load(slow, connections=2, duration_s=0.2, timeout_s=0.3)
    assert result.faults == {"timeout": 2}


def test_a_service_that_goes_away_is_seen_as_one():
    with FakeServer() as server:

        def twist(number, request, reply):
            if number == 20:
                server.disappear()
            return reply

        server.twist = twist
        options = LoadOptions(
            url=server.url, connections=2, duration_s=0.6, warm_up_s=0.0, timeout_s=1.0
        )
        result = run_load(options).results[0]
    assert set(result.faults) == {"reset", "connect"}
    assert result.faults["reset"] <= 2
    # 0.05, 0.1, 0.2, 0.4 s: each of two connections tries a few times, not a thousand.
    assert 2 <= result.faults["connect"] <= 10
    assert result.statuses["200"] >= 18


@pytest.mark.parametrize("rate_per_s", [None, 20.0], ids=["closed", "open"])
def test_a_second_answer_is_not_taken_for_the_answer_to_the_next_request(load, rate_per_s):
    def twist(number, request, reply):
        return replace(reply, late=reply.raw()) if number == 4 else reply

    result, _ = load(twist, connections=1, rate_per_s=rate_per_s, duration_s=0.7)
    assert not result.ok
    # It meets an idle connection, or the next request, and then the right answer is left over.
    assert result.faults in ({"protocol": 1}, {"wrong_values": 1, "protocol": 1})
