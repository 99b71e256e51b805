"""Reports made by hand."""

from service.load.faults import Fault
from service.load.histogram import LogHistogram
from service.load.options import LoadOptions
from service.load.plan import Load
from service.load.report import LoadReport, make_result
from service.load.tally import Tally


def make_tally(latencies_ms, rows=1, seconds=10.0):
    tally = Tally(requests=len(latencies_ms), sent=len(latencies_ms))
    tally.tokens = rows * tally.requests
    tally.sent_bytes = tally.received_bytes = tally.tokens * 1792
    tally.statuses["200"] = tally.compared_fully = tally.requests
    tally.cpu_shares = (0.25,)
    histogram = LogHistogram()
    for latency_ms in latencies_ms:
        histogram.record(int(latency_ms * 1e6))
        tally.batch_tokens.record(3)
        tally.kernels["kernel2"] += 1
        tally.note_timing("queue", latency_ms / 10)
    if latencies_ms:
        tally.latency_ns[rows] = histogram
    return tally


def make_report(*loads_and_tallies, **options):
    options = LoadOptions(**options)
    return LoadReport(
        options=options,
        date_utc="2026-11-29T12:00:00+00:00",
        model="qwen2.5-0.5b",
        hidden_size=896,
        width=896,
        server={"name": "tilemlp"},
        model_metadata={"name": "qwen2.5-0.5b"},
        versions={"tilemlp": "0.1.0"},
        host={"cpu_count": 2},
        results=tuple(
            make_result(load, tally, options.duration_s) for load, tally in loads_and_tallies
        ),
    )


def make_sweep(errors_in_last=0):
    """A closed loop whose throughput saturates: what a plot is for."""
    loads = []
    for connections in (1, 2, 4, 8, 16, 32):
        rate = 4000 * connections / (connections + 6)
        mean_ms = 1000 * connections / rate
        tally = make_tally([mean_ms * (0.6 + 0.8 * i / (rate * 10)) for i in range(int(rate * 10))])
        loads.append((Load(connections, None), tally))
    for _ in range(errors_in_last):
        loads[-1][1].note_fault(Fault.TIMEOUT, "no whole answer within 30 s")
    return make_report(*loads, connections=32, sweep=True)
