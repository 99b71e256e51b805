import pytest

from service.load.faults import Fault
from service.load.plan import Load
from service.load.render import format_time, render_report
from tests.load.reports import make_report, make_sweep, make_tally

LOAD = Load(8, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000345, "34.5 µs"),
        (0.000000512, "0.51 µs"),
        (0.0009994, "999 µs"),
        (0.001, "1.00 ms"),
        (0.009996, "10.0 ms"),
        (0.1234, "123 ms"),
        (1.5, "1.50 s"),
        (100.0, "100 s"),
    ],
)
def test_times_have_three_digits(seconds, text):
    assert format_time(seconds) == text


def lines_of(report):
    return {line[:12].strip(): line[12:] for line in render_report(report).split("\n")}


def test_one_load_is_told_line_by_line():
    lines = lines_of(make_report((LOAD, make_tally([2.0] * 1000))))
    assert lines["latency"] == "p50 2.00 ms  p90 2.00 ms  p99 2.00 ms  p99.9 2.00 ms  max 2.00 ms"
    assert lines["throughput"] == (
        "100.0 requests/s, 100 tokens/s, 0.18 MB/s sent, 0.18 MB/s received"
    )
    assert lines["answers"] == "200 × 1,000"
    assert lines["compared"] == "1,000 right in full, 0 in part, 0 wrong"
    assert lines["batches"] == "3.0 tokens mean, 3 p50, 3 max per request"
    assert lines["kernels"] == "kernel2 × 1,000"
    assert lines["server"] == "queue 200 µs (means)"
    assert lines["client CPU"] == "25% of a core"
    assert "backlog" not in lines
    assert not any("warning" in line for line in lines)


def test_the_conditions_come_first():
    first, second, *_ = render_report(
        make_report(
            (LOAD, make_tally([2.0])),
            url="http://h:1/p",
            layer=3,
            rows=((1, 3.0), (64, 1.0)),
            processes=2,
        )
    ).split("\n")
    assert (
        first == "qwen2.5-0.5b layer 3 → mlp, bf16 [1 (0.75) / 64 (0.25), 896] → [·, 896] at h:1/p"
    )
    assert second == (
        "closed loop, 8 connections from 2 processes, 10 s after 2 s of warm-up, seed 0, 2026-11-29"
    )


def test_the_open_loop_tells_what_the_client_added():
    tally = make_tally([2.0])
    tally.wait_ns.record(50_000)
    tally.most_backlog = 1234
    report = make_report((Load(8, 100.0), tally), rate_per_s=100.0)
    lines = lines_of(report)
    assert "open loop, 100 requests/s over 8 connections" in render_report(report)
    assert lines["in client"].startswith("p50 50.0 µs")
    assert lines["backlog"] == "1,234 requests at most"


def test_a_mix_is_told_by_rows():
    tally = make_tally([2.0], rows=1)
    tally.merge(make_tally([8.0], rows=64))
    lines = lines_of(make_report((LOAD, tally), rows=((1, 1.0), (64, 1.0))))
    assert lines["1 rows"].startswith("p50 2.00 ms")
    assert lines["64 rows"].startswith("p50 8.00 ms")
    assert lines["latency"].endswith("max 8.00 ms")


def test_errors_are_told_with_an_example():
    tally = make_tally([2.0] * 3)
    tally.note_status("429 queue_full", "queue: must be below 8")
    tally.note_fault(Fault.RESET, "connection closed after no head")
    text = render_report(make_report((LOAD, tally)))
    assert "errors: 2, with 3 requests sent" in text
    assert "  429 queue_full × 1: queue: must be below 8" in text
    assert "  reset × 1: connection closed after no head" in text


def test_a_load_without_a_right_answer_is_told():
    tally = make_tally([])
    tally.note_status("500", "")
    assert lines_of(make_report((LOAD, tally)))["latency"] == "no right answer"
    table = render_report(make_report((LOAD, tally), (LOAD, make_tally([1.0])), sweep=True))
    assert " –  " in table


def test_a_busy_client_is_warned_of():
    tally = make_tally([2.0])
    tally.cpu_shares = (0.4, 0.97)
    text = render_report(make_report((LOAD, tally)))
    assert "40%, 97% of a core" in text
    assert "warning: a client process used 97% of a core" in text


def test_a_sweep_is_a_table():
    text = render_report(make_sweep(errors_in_last=2))
    lines = text.split("\n")
    assert "closed loop, up to 32 connections from 1 process" in lines[1]
    table = lines[3:10]
    assert table[0].split()[:3] == ["connections", "rate/s", "requests/s"]
    assert [line.split()[0] for line in table[1:]] == ["1", "2", "4", "8", "16", "32"]
    assert len({len(line) for line in table}) == 1
    assert "errors at 32 connections: 2, with" in text
    assert "errors at 16" not in text
