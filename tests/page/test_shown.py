"""What the page shows of scrapes and times that are known exactly."""

from __future__ import annotations

from itertools import product

import pytest

from service.counts import APIS
from service.errors import outcomes
from tests.page.browser import PHONE, overflowing
from tests.page.scripted import Scripted, gpu_series, new_metrics, work
from tests.servers import wait_until


@pytest.fixture
def scripted(opened):
    return lambda **options: Scripted(opened(**options.pop("context", {})), **options)


def test_before_any_traffic(scripted):
    page = scripted()
    page.tick()
    assert page.figure("requestsPerSecond") == "0/s"
    assert page.figure("notOkShare") == page.figure("p50") == page.figure("p99") == "–"
    assert page.table("outcomes") == [["No request has ended yet."]]
    assert page.table("kernels") == [["No kernel has been launched yet."]]
    assert "No ok request yet" in page.page.locator("#latency-chart").inner_text()


def test_what_happened_before_the_page_was_opened_is_not_counted(scripted):
    metrics = new_metrics()
    work(metrics, ok=100)
    page = scripted(metrics=metrics)
    work(metrics, ok=3)
    page.tick()
    assert page.table("outcomes") == [["ok (mlp)", "3", "100 %"]]


def test_rates_shares_and_quantiles(scripted):
    page = scripted()
    work(page.metrics, ok=30, full=10)
    page.metrics.requests, page.metrics.tokens, page.metrics.bytes = 3, 4500, 3 << 20
    page.tick()
    shown = {
        name: page.figure(name)
        for name in (
            "requestsPerSecond",
            "notOkShare",
            "tokensPerSecond",
            "batchesPerSecond",
            "flopsPerSecond",
            "mfu",
            "busyShare",
            "queueRequests",
            "queueTokens",
            "queueBytes",
        )
    }
    assert shown == {
        "requestsPerSecond": "20/s",
        "notOkShare": "25 %",
        "tokensPerSecond": "15/s",
        "batchesPerSecond": "15/s",
        "flopsPerSecond": "150 GFLOP/s",
        "mfu": "15 %",
        "busyShare": "15 %",
        "queueRequests": "3",
        "queueTokens": "4.5 k",
        "queueBytes": "3 MiB",
    }
    # 1 ms lies in the bucket from 50 µs·1.6⁶ to 50 µs·1.6⁷; half of it, and 0.99 of it.
    low, high = 50e-3 * 1.6**6, 50e-3 * 1.6**7
    assert page.figure("p50") == f"{(low + high) / 2:.3g} ms"
    assert page.figure("p99") == f"{low + 0.99 * (high - low):.3g} ms"
    assert page.table("outcomes") == [
        ["ok (mlp)", "30", "75 %"],
        ["queue_full (v2)", "10", "25 %"],
    ]
    assert page.table("batch-tokens") == [["1", "30", "100 %"]]
    assert [row[0] for row in page.table("stages")] == ["queue", "compute"]
    # 0.5 ms of a bucket from 0.32 to 0.64 ms.
    assert page.table("kernels") == [["kernel2"], ["", "30", "100 %", "480 µs", "637 µs"]]


def test_numbers_are_of_the_last_ten_seconds_and_tables_of_five_minutes(scripted):
    page = scripted()
    work(page.metrics, ok=50)
    page.tick(5)
    assert page.figure("requestsPerSecond") == "5/s"
    page.tick(1)
    assert page.figure("requestsPerSecond") == "0/s"
    assert page.figure("p50") == "–"
    page.tick(143)
    assert page.table("outcomes") == [["ok (mlp)", "50", "100 %"]]
    page.tick(2)
    assert page.table("outcomes") == [["No request has ended yet."]]
    assert 150 <= page.page.evaluate("timeline.points.length") <= 151


def test_a_restart_of_the_service_loses_nothing(scripted):
    page = scripted()
    work(page.metrics, ok=10)
    page.tick()
    page.metrics = new_metrics()
    work(page.metrics, ok=4)
    page.tick()
    assert page.table("outcomes") == [["ok (mlp)", "14", "100 %"]]
    assert page.figure("requestsPerSecond") == "3.5/s"


def test_without_a_known_peak_there_is_no_mfu(scripted):
    page = scripted(metrics=new_metrics(peak_flops=None))
    work(page.metrics, ok=1)
    page.tick()
    assert page.figure("mfu") == "–"
    assert page.page.locator("#mfu-note").is_visible()


def test_gpus_are_shown_when_they_are_measured(scripted):
    page = scripted()
    page.tick()
    assert not page.page.locator("#gpu-card").is_visible()
    page.extra = gpu_series(0, 0.5, 30 * 2**30, 412.3, 1.98e9)
    page.tick()
    assert page.page.locator("#gpu-card").is_visible()
    assert page.table("gpus") == [["GPU 0"], ["", "50 %", "30 GiB", "412 W", "1.98 GHz"]]
    label = page.page.locator("#gpu-chart svg").get_attribute("aria-label")
    assert label == "GPU utilisation, last 60 s. GPU 0: now 50 %, highest 50 %."
    page.extra = page.extra.replace("mlp_gpu_power_watts", "other")
    page.tick()
    assert page.table("gpus") == [["GPU 0"], ["", "50 %", "30 GiB", "–", "1.98 GHz"]]


def test_a_chart_says_in_words_what_it_draws(scripted):
    page = scripted()
    work(page.metrics, ok=100)
    page.tick(5)
    work(page.metrics, ok=10)
    page.tick()
    chart = page.page.get_by_role("img", name="Requests per second, last 60 s. ok: now 1/s")
    assert "highest 50/s" in chart.get_attribute("aria-label")
    assert "not ok: now 0/s, highest 0/s." in chart.get_attribute("aria-label")


def test_states_of_the_service(scripted):
    page = scripted()
    status, reason = page.page.locator("#status"), page.page.locator("#reason")
    assert status.inner_text() == "Ready"
    assert not reason.is_visible()
    build = "m · fused backend · NVIDIA H200 · tilemlp 1"
    assert page.page.locator("#build").inner_text() == build
    page.metrics.ready, page.reason = 0, "draining"
    page.tick()
    assert (status.inner_text(), reason.inner_text()) == ("Not ready", "draining")
    page.metrics.healthy, page.reason = 0, "self-test: a wrong answer"
    page.tick()
    assert status.inner_text() == "Engine unhealthy"
    assert reason.inner_text() == "self-test: a wrong answer"
    page.metrics.ready = page.metrics.healthy = 1
    page.tick()
    assert (status.inner_text(), reason.is_visible()) == ("Ready", False)


def test_when_nobody_answers_it_says_so_and_goes_on_asking(opened):
    watched = opened()
    page = Scripted(watched)
    work(page.metrics, ok=8)
    page.tick()
    page.down = True
    page.tick()
    assert page.page.locator("#status").inner_text() == "No answer"
    assert "the numbers below are old" in page.page.locator("#reason").inner_text()
    page.down = False
    page.tick()
    assert page.page.locator("#status").inner_text() == "Ready"
    # 8 requests in the 6 s that three polls are, one of them lost.
    assert page.figure("requestsPerSecond") == "1.33/s"
    assert watched.faults == ["Failed to load resource: net::ERR_CONNECTION_REFUSED"]
    watched.faults.clear()


def test_pause_stops_asking_until_it_is_resumed(scripted):
    page = scripted()
    page.tick()
    page.page.get_by_role("button", name="Pause").click()
    page.page.clock.run_for(60_000)
    page.page.wait_for_timeout(200)
    assert page.scrapes == 2
    timer = page.page.evaluate("timer")
    page.page.get_by_role("button", name="Resume").click()
    page.settle(timer)
    assert page.scrapes == 3
    page.tick()
    assert page.scrapes == 4


def test_a_hidden_page_asks_for_nothing_and_starts_over_after_long(scripted):
    page = scripted()
    work(page.metrics, ok=7)
    page.tick()

    def show(visible: bool) -> None:
        page.page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ value: {not visible:d}, "
            "configurable: true })"
        )
        page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    show(False)
    page.page.clock.run_for(2000)
    # In this order: what the page asks for is answered while a call to it is waiting.
    wait_until(lambda: not page.page.evaluate("asking") and page.scrapes == 3, 20)
    page.page.clock.run_for(400_000)
    page.page.wait_for_timeout(200)
    assert page.scrapes == 3
    work(page.metrics, ok=99)
    timer = page.page.evaluate("timer")
    show(True)
    page.settle(timer)
    work(page.metrics, ok=2)
    page.tick()
    assert page.table("outcomes") == [["ok (mlp)", "2", "100 %"]]


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_extremes_fit(scripted, width):
    kernels = ("pp_128x192_c2x1_256x128_c1x2_bf16", "reference")
    context = {"viewport": {**PHONE, "width": width}}
    page = scripted(metrics=new_metrics(kernels, peak_flops=1e15), context=context)
    for api, outcome in product(APIS, outcomes()):
        for _ in range(12345):
            page.metrics.request_ended(api, outcome, 9.87)
    for k in range(18):
        page.metrics.batch_started("idle", 2**k, 2 ** min(k, 12))
    page.metrics.batch_succeeded(
        tokens=10**9,
        flops=1888 * 10**12,
        busy_s=1.999,
        kernels=[(name, 0.1234) for name in kernels],
        stages=dict.fromkeys(("h2d", "compute", "d2h"), 0.0123),
    )
    page.metrics.requests = page.metrics.tokens = page.metrics.bytes = 1023 << 30
    page.extra = "".join(gpu_series(n, 0.999, 139.9 * 2**30, 699.9, 1.98e9) for n in range(8))
    page.tick()
    assert page.figure("flopsPerSecond") == "944 TFLOP/s"
    assert overflowing(page.page) == []


def test_the_finder_of_overflow_finds_one(scripted):
    page = scripted(context={"viewport": PHONE})
    page.page.locator("#build").evaluate("(one) => (one.style.whiteSpace = 'nowrap')")
    page.page.locator("#build").evaluate("(one) => (one.textContent = 'wide '.repeat(50))")
    assert any(line.startswith("P#build") for line in overflowing(page.page))
