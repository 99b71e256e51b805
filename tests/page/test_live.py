"""The page on the real service, in a real browser, while requests come in."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine
from tests.page.browser import PHONE, overflowing
from tests.servers import ServerProcess, ServerThread, wait_until

pytestmark = pytest.mark.e2e

HIDDEN = 896


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("page") / "log"
    with pytest.MonkeyPatch.context() as patch:
        # The browser and the load want the other core.
        patch.setenv("OMP_NUM_THREADS", "1")
        process = ServerProcess(log, device="cpu")
    with process as server:
        yield server
        assert server.terminate() == 0
        assert "Traceback" not in server.log


def load(url: str, requests: int) -> None:
    """As many requests of 1 to 16 rows, four at a time, all answered when it returns."""

    def post(rows: int) -> int:
        answer = httpx.post(f"{url}/mlp", content=bytes(2 * HIDDEN * rows), timeout=60)
        return answer.status_code

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(post, (1 + i % 16 for i in range(requests))))
    assert statuses == [200] * requests


def cells(page, table: str) -> dict[str, list[str]]:
    rows = page.locator(f"#{table} tbody tr").all()
    found = [row.locator("th, td").all_inner_texts() for row in rows]
    return {name.strip(): [cell.strip() for cell in others] for name, *others in found}


def wait_for_polls(page, polls: int) -> None:
    """As many more polls, seen by what a poll leaves behind."""
    begun = page.evaluate("timeline.points.length")
    wait_until(lambda: page.evaluate("timeline.points.length") >= begun + polls, 20)


def test_numbers_on_the_page_are_those_of_the_scrapes(server, opened):
    page = opened().page
    before = Scrape(server.url)
    began = time.monotonic()
    page.goto(server.url)
    wait_until(lambda: page.evaluate("timeline.last !== null"), 10)
    # With the answer of 404 there is an outcome besides ok.
    assert page.evaluate("fetch('mlp?layer=99', { method: 'POST' }).then((a) => a.status)") == 404
    load(server.url, 120)
    wait_for_polls(page, 2)
    after = Scrape(server.url)
    elapsed = time.monotonic() - began

    assert cells(page, "outcomes") == {
        "ok (mlp)": ["120", "99.2 %"],
        "not_found (mlp)": ["1", "0.83 %"],
    }
    rates = page.evaluate("timeline.values((point) => point.figures.okPerSecond)")
    assert 0 < max(rate for _, rate in rates) <= 120 / 2
    tokens = after("mlp_tokens_total") - before("mlp_tokens_total")
    assert page.evaluate('sum(timeline.over(HISTORY_S).grown, "mlp_tokens_total")') == tokens

    launches = {"name": "mlp_kernel_launches_total", "kernel": "reference"}
    shown = page.evaluate("kernelRows(timeline.over(HISTORY_S).grown)")
    assert [row["kernel"] for row in shown] == ["reference"]
    assert shown[0]["count"] == after(**launches) - before(**launches)

    busy = after("mlp_gpu_busy_seconds_total") - before("mlp_gpu_busy_seconds_total")
    seconds = page.evaluate("timeline.points.map((point) => point.seconds)")
    assert sum(seconds) < elapsed
    total = page.evaluate('sum(timeline.over(HISTORY_S).grown, "mlp_gpu_busy_seconds_total")')
    assert total == pytest.approx(busy)
    peak = max(page.evaluate("timeline.values((p) => p.figures.busyShare)"), key=lambda p: p[1])
    assert 0 < peak[1] <= 1.05


def test_latency_percentiles_are_those_of_the_buckets(server, opened):
    page = opened().page
    page.goto(server.url)
    wait_until(lambda: page.evaluate("timeline.last !== null"), 10)
    name = "mlp_request_duration_seconds"
    before = Scrape(server.url).buckets(name, api="mlp")
    load(server.url, 60)
    wait_for_polls(page, 1)
    after = Scrape(server.url).buckets(name, api="mlp")
    counts = {bound: count - before.get(bound, 0) for bound, count in sorted(after.items())}
    shown = page.evaluate("figures(timeline.over(HISTORY_S).grown, 1, timeline.last.scrape)")
    for q in (0.5, 0.9, 0.99):
        rank = q * sum(counts.values())
        cumulative = zip(counts, accumulate(counts.values()), strict=True)
        bound = next(bound for bound, count in cumulative if count >= rank)
        # Bounds are a factor of 1.6 apart.
        assert bound / 1.6 < shown[f"p{round(q * 100)}"] <= bound


def test_a_request_from_the_form(server, opened):
    page = opened().page
    page.goto(server.url)
    form = page.locator("#try")
    wait_until(lambda: form.get_by_label("Body").input_value() != "", 10)
    assert page.locator("#shape").inner_text() == f"qwen2.5-0.5b: rows of {HIDDEN} numbers, silu"
    assert form.get_by_label("Layer").input_value() == "0"
    form.get_by_label("Rows").fill("3")
    form.get_by_label("Output").select_option("gated")
    form.get_by_label("Values").select_option("ones")
    # By keyboard alone.
    form.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    status = page.locator("#answer-status")
    wait_until(lambda: status.inner_text() not in ("", "Sending"), 10)
    assert re.fullmatch(r"200 OK after [\d.]+ [mµ]?s", status.inner_text())
    assert page.evaluate("document.activeElement.name") == "send"
    headers = page.locator("#answer-headers")
    names = headers.locator("dt").all_inner_texts()
    found = dict(zip(names, headers.locator("dd").all_inner_texts(), strict=True))
    assert found["X-MLP-Kernel"] == "reference"
    assert found["X-MLP-Batch-Tokens"] == "3"
    assert found["X-Tensor-Shape"] == "3,4864"
    assert found["Server-Timing"].startswith("queue;dur=")
    body = page.locator("#answer-body").inner_text().splitlines()
    assert len(body) == 3
    assert len(set(body)) == 1, "equal rows have equal answers"
    assert body[0].endswith("… 4864 in all]")


def test_an_error_is_shown_as_the_service_words_it(server, opened):
    page = opened().page
    page.goto(server.url)
    form = page.locator("#try")
    wait_until(lambda: form.get_by_label("Body").input_value() != "", 10)
    form.get_by_label("Body").fill('{"inputs": [[1, 2]]}')
    form.get_by_role("button", name="Send").click()
    status = page.locator("#answer-status")
    wait_until(lambda: "400 Bad Request" in status.inner_text(), 10)
    body = page.locator("#answer-body").inner_text()
    assert body.startswith("invalid: ")
    assert str(HIDDEN) in body
    assert page.locator("#answer-headers dt").all_inner_texts() == ["X-Request-Id", "Content-Type"]


def test_rows_out_of_range_are_not_sent(server, opened):
    page = opened().page
    page.goto(server.url)
    wait_until(lambda: page.get_by_label("Body").input_value() != "", 10)
    page.get_by_label("Rows").fill("17")
    page.get_by_role("button", name="Send").click()
    assert page.evaluate("form.rows.validity.rangeOverflow")
    assert page.locator("#answer-status").inner_text() == ""


def test_with_an_api_key(opened):
    with ServerThread(FakeEngine(), api_key="right-key") as service:
        page = opened().page
        page.goto(service.url)
        wait_until(lambda: page.locator("#key-hint").is_visible(), 10)
        assert page.locator("#status").inner_text().endswith("Ready")
        page.get_by_label("API key").fill("wrong-key")
        page.get_by_label("Body").fill('{"inputs": [[1]]}')
        page.get_by_role("button", name="Send").click()
        wait_until(lambda: "401" in page.locator("#answer-status").inner_text(), 10)
        assert page.locator("#answer-body").inner_text().startswith("unauthorized: ")
        page.get_by_label("API key").fill("right-key")
        page.get_by_label("API key").press("Tab")
        wait_until(lambda: not page.locator("#key-hint").is_visible(), 10)
        page.get_by_role("button", name="Send").click()
        wait_until(lambda: "200 OK" in page.locator("#answer-status").inner_text(), 10)
        assert page.evaluate("[...Object.keys(localStorage), document.cookie]") == [""]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, {"width": 1280, "height": 900}])
def test_readable_in_both_schemes_and_on_a_phone(server, opened, scheme, viewport):
    page = opened(color_scheme=scheme, viewport=viewport).page
    page.goto(server.url)
    wait_until(lambda: page.get_by_label("Body").input_value() != "", 10)
    page.get_by_role("button", name="Send").click()
    wait_until(lambda: "200 OK" in page.locator("#answer-status").inner_text(), 10)
    wait_for_polls(page, 2)
    assert overflowing(page) == []
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    )
    assert (red + green + blue < 3 * 128) == (scheme == "dark")
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    # Axe knows no background of text in SVG, which has the colour of the notes that it does judge.
    undecided = [
        node["html"]
        for item in result.response["incomplete"]
        for node in item["nodes"]
        if item["id"] == "color-contrast"
    ]
    assert [html for html in undecided if not html.startswith("<text ")] == []


def test_every_control_is_reached_by_tab(server, opened):
    page = opened().page
    page.goto(server.url)
    wait_until(lambda: page.get_by_label("Body").input_value() != "", 10)
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.name || document.activeElement.textContent.trim()"
            )
        )
        if reached[-1] == "send":
            break
    form = ["layer", "output", "rows", "values", "key", "body", "send"]
    assert reached == ["Pause", "API", "Metrics", "README", *form]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
