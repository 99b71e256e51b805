import pytest

from service.engine.base import DType, Output
from tests.load.fake_server import HIDDEN, error_reply


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("output", Output)
def test_a_service_that_answers_rightly_is_ok(load, dtype, output):
    result, server = load(dtype=dtype, output=output, rows=((3, 1.0),))
    assert result.ok
    assert (result.errors, result.wrong_answers, dict(result.faults)) == (0, 0, {})
    assert result.statuses == {"200": result.sent}
    assert result.compared_fully == result.sent > 20
    assert {r.output for r in server.mlp_requests()} == {output.value}
    assert {r.dtype for r in server.mlp_requests()} == {dtype}
    assert {r.rows for r in server.mlp_requests()} == {3}


def test_rates_follow_from_the_answers_in_the_measured_time(load):
    result, server = load(rows=((5, 1.0),), output=Output.GATED, duration_s=0.5)
    assert result.requests_per_s * 0.5 == pytest.approx(result.sent, abs=4)
    assert result.tokens_per_s == pytest.approx(5 * result.requests_per_s)
    assert result.sent_bytes_per_s == pytest.approx(result.tokens_per_s * HIDDEN * 2)
    assert result.received_bytes_per_s == pytest.approx(result.tokens_per_s * 40 * 2)
    assert result.latency.count == result.sent == len(server.mlp_requests()) - 8
    assert 0 < result.latency.p50_s <= result.latency.p90_s <= result.latency.p99_s
    assert result.latency.p999_s <= result.latency.max_s < 0.5


def test_what_the_headers_say_is_collected(load):
    result, _ = load()
    counted = round(result.requests_per_s * 0.15)
    assert result.kernels == {"fake": counted}
    assert (result.batch_tokens.mean, result.batch_tokens.p50, result.batch_tokens.max) == (7, 7, 7)
    assert result.server_timing_s == {
        "queue": pytest.approx(0.0005),
        "execute": pytest.approx(0.00225),
    }
    assert len(result.cpu_shares) == 1
    assert 0 < result.cpu_shares[0] < 2  # the fake server's thread is in it


def test_each_connection_waits_for_its_answer(load):
    def twist(number, request, reply):
        reply.delay_s = 0.1
        return reply

    result, server = load(twist, connections=3, duration_s=0.45)
    # Five rounds of 0.1 s start within 0.45 s, fewer if the machine is busy.
    assert result.sent in (9, 12, 15)
    assert result.requests_per_s * 0.45 == pytest.approx(result.sent - 3)  # the last came too late
    assert 0.1 <= result.latency.p50_s < 0.2
    assert len({r.peer for r in server.mlp_requests()[8:]}) == 3


def test_connections_are_kept(load):
    result, server = load(connections=4)
    assert result.ok
    # Metadata, index and 8 lone requests have one each.
    assert server.connections == 4 + 3 + 8


def test_a_mix_is_sent_and_told_apart(load):
    result, server = load(rows=((1, 3.0), (4, 1.0)), spare=16, duration_s=0.5)
    rows = [r.rows for r in server.mlp_requests()[16:]]
    assert rows.count(1) / rows.count(4) == pytest.approx(3, rel=0.5)
    assert {rows: q.count for rows, q in result.latency_by_rows.items()} == {
        1: rows.count(1),
        4: rows.count(4),
    }
    assert result.latency.count == len(rows)


def test_the_warm_up_counts_for_faults_but_not_for_speed(load):
    def twist(number, request, reply):
        if number < 4:
            reply.delay_s = 0.2
        return error_reply(500, "engine_error") if number == 4 else reply

    result, _ = load(twist, warm_up_s=0.4, duration_s=0.3)
    assert result.statuses["500 engine_error"] == 1
    assert not result.ok
    assert result.latency.max_s < 0.15
    assert result.latency.count < result.sent - 4


def test_retry_after_is_honoured(load):
    def twist(number, request, reply):
        return error_reply(429, "queue_full", **{"Retry-After": 1}) if number < 2 else reply

    result, server = load(twist, connections=2, duration_s=1.3)
    assert result.statuses["429 queue_full"] == 2
    assert result.examples["429 queue_full"] == "it is queue_full"
    assert not result.ok
    # Both pause for 1 s of 1.3 s, on connections that stay open.
    assert result.latency.max_s < 0.5
    # Each of the two may end one request after the time is over; half of one for the rounding.
    assert result.requests_per_s * 1.3 == pytest.approx(result.statuses["200"], abs=2.5)
    assert server.connections == 2 + 3 + 8


def test_retry_after_beyond_the_end_ends_the_client(load):
    def twist(number, request, reply):
        return error_reply(503, "unavailable", **{"Retry-After": 50})

    result, _ = load(twist, connections=3, duration_s=0.2)
    assert result.statuses == {"503 unavailable": 3}
    assert (result.sent, result.latency, result.ok) == (3, None, False)


def test_without_retry_after_the_next_request_follows_at_once(load):
    def twist(number, request, reply):
        return error_reply(500, "engine_error") if number % 2 else reply

    result, _ = load(twist)
    assert result.statuses["500 engine_error"] == pytest.approx(result.statuses["200"], abs=4)
    assert result.sent > 20


def test_an_announced_close_is_no_error(load):
    def twist(number, request, reply):
        reply.headers["Connection"] = "close"
        reply.close = True
        return reply

    result, server = load(twist, connections=2)
    assert result.ok
    assert result.sent > 4
    assert server.connections >= result.sent
