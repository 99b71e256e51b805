import pytest

from tests.load.fake_server import error_reply


def test_arrivals_come_at_the_rate_whatever_the_connections(load):
    result, server = load(rate_per_s=400.0, connections=8, duration_s=0.5)
    assert result.ok
    assert result.sent == pytest.approx(200, abs=50)  # 3.5 standard deviations
    assert result.requests_per_s * 0.5 == pytest.approx(result.sent, abs=5)
    assert result.latency.count == result.sent == result.wait.count
    assert result.wait.p50_s < 0.005
    assert len({r.peer for r in server.mlp_requests()[8:]}) == 8  # they take turns


def test_the_seed_decides_the_arrivals(load):
    sent = [load(rate_per_s=300.0, seed=seed)[0].sent for seed in (1, 1, 2)]
    assert sent[0] == sent[1]
    assert len(set(sent)) > 1


def test_arrivals_do_not_wait_for_answers(load):
    def twist(number, request, reply):
        reply.delay_s = 0.2
        return reply

    result, _ = load(twist, rate_per_s=100.0, connections=64, duration_s=0.5)
    # In a closed loop of one the same service would do 5 requests per second.
    assert result.sent == pytest.approx(50, abs=25)
    assert result.latency.p50_s == pytest.approx(0.2, abs=0.05)
    assert result.wait.max_s < 0.1


def stall_once(number, request, reply):
    reply.delay_s = 0.4 if number == 10 else 0.0
    return reply


def test_a_stall_counts_for_everyone_who_was_to_be_served_in_it(load):
    """One stall of 0.4 s in 1 s hits 40 % of the arrivals, though one request alone was stalled."""
    opened, _ = load(stall_once, rate_per_s=100.0, connections=1, duration_s=1.0)
    closed, _ = load(stall_once, connections=1, duration_s=1.0)
    assert opened.ok
    assert opened.latency.p90_s > 0.2
    assert opened.wait.p90_s > 0.2
    assert opened.most_backlog > 10
    assert closed.latency.p90_s < 0.1 < closed.latency.max_s


def test_what_finds_the_backlog_full_is_reported(load):
    def twist(number, request, reply):
        reply.delay_s = 0.1
        return reply

    result, _ = load(twist, rate_per_s=200.0, connections=2, duration_s=0.5, max_backlog_requests=5)
    assert not result.ok
    assert result.most_backlog == 5
    assert set(result.faults) == {"backlog"}
    # 100 are due; 2 connections send 10, then 7 are under way or waiting.
    assert result.faults["backlog"] == pytest.approx(83, abs=35)
    assert "all connections busy and 5 requests were waiting" in result.examples["backlog"]
    assert result.sent == result.statuses["200"] == result.latency.count
    # The last ones waited behind five others for two connections.
    assert result.wait.max_s == pytest.approx(0.3, abs=0.15)


def test_a_backlog_that_cannot_be_worked_off_in_a_timeout_is_given_up(load):
    def twist(number, request, reply):
        reply.delay_s = 0.15
        return reply

    result, _ = load(twist, rate_per_s=100.0, connections=1, duration_s=0.3, timeout_s=0.3)
    assert set(result.faults) == {"backlog"}
    assert "still waiting for a connection a timeout after the end" in result.examples["backlog"]
    assert result.sent <= 6


def test_a_backlog_at_the_end_is_worked_off(load):
    def twist(number, request, reply):
        reply.delay_s = 0.02
        return reply

    result, _ = load(twist, rate_per_s=100.0, connections=1, duration_s=0.5)
    assert result.ok
    assert result.latency.count == result.sent
    # Throughput is what was answered in time, not what was sent.
    assert result.requests_per_s <= 50


def test_retry_after_does_not_slow_arrivals(load):
    def twist(number, request, reply):
        return error_reply(429, "queue_full", **{"Retry-After": 30})

    result, _ = load(twist, rate_per_s=200.0, connections=2, duration_s=0.5)
    assert result.statuses == {"429 queue_full": result.sent}
    assert result.sent == pytest.approx(100, abs=40)


def test_faults_and_closes_do_not_stop_arrivals(load):
    def twist(number, request, reply):
        if number % 4 == 1:
            reply.cut = 10
        if number % 4 == 3:
            reply.headers["Connection"] = "close"
            reply.close = True
        return reply

    result, _ = load(twist, rate_per_s=200.0, connections=4, duration_s=0.5)
    assert set(result.faults) == {"reset"}
    assert result.sent == pytest.approx(100, abs=40)
    assert result.faults["reset"] == pytest.approx(result.sent / 4, abs=1)


def test_connections_closed_while_idle_are_replaced(load):
    """As a server does after its keep-alive time; nothing was asked, so nothing went wrong."""
    closed = []

    def twist(number, request, reply):
        reply.close = number % 3 == 0  # not announced: the answer is whole, then the end
        closed.append(reply.close)
        return reply

    result, server = load(twist, rate_per_s=60.0, connections=3, duration_s=0.5)
    assert sum(closed) > 3
    assert result.statuses["200"] == result.sent - result.faults.get("reset", 0)
    # A request may meet the close on its way, which is a reset; most do not.
    assert result.faults.get("reset", 0) <= sum(closed) / 3
    assert len({r.peer for r in server.mlp_requests()[8:]}) > 3
