"""The page's own arithmetic, with answers known by hand: text format, rates, quantiles, words."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.bench.stub import StubEngine
from service.config import Settings
from service.routes.page import FOLDER
from service.runtime import Runtime

_PURE = ("exposition.js", "figures.js", "format.js", "chart.js")


@pytest.fixture(scope="module")
def js(browser) -> Callable:
    """Evaluate an expression of the page's functions; `texts` are its scrapes, parsed, as a, b."""
    page = browser.new_page()
    for name in _PURE:
        page.add_script_tag(content=(FOLDER / name).read_text())

    def evaluate(expression: str, *texts: str) -> object:
        names = "abcd"[: len(texts)]
        given = "".join(
            f"const {name} = parseExposition({json.dumps(text)});"
            for name, text in zip(names, texts, strict=True)
        )
        return page.evaluate(f"() => {{ {given} return {expression}; }}")

    yield evaluate
    page.close()


def series(name: str, **values: float) -> str:
    """A counter with one label `k`."""
    return "".join(f'{name}{{k="{key}"}} {value}\n' for key, value in values.items())


def histogram(name: str, *counts: int, labels: str = "") -> str:
    """Cumulative counts at 1, 2, 4, … and +Inf."""
    bounds = [*(str(2.0**k) for k in range(len(counts) - 1)), "+Inf"]
    return "".join(
        f'{name}_bucket{{{labels}le="{bound}"}} {count}\n'
        for bound, count in zip(bounds, counts, strict=True)
    )


def test_text_format(js):
    text = (
        "# HELP a Something {like} this 1\n# TYPE a gauge\n\n"
        'a{x="1",y="with } and , and \\"quotes\\""} 2.5e+03\n'
        'a{x="back\\\\slash\\nnew \\\\n"} -1\n'
        "b +Inf 1395066363000\nc NaN\nd -Inf\ne{} 0\n"
    )
    found = js("[...a].map(([name, s]) => [name, [...s.values()].map((v) => v.labels)])", text)
    assert found == [
        ["a", [{"x": "1", "y": 'with } and , and "quotes"'}, {"x": "back\\slash\nnew \\n"}]],
        ["b", [{}]],
        ["c", [{}]],
        ["d", [{}]],
        ["e", [{}]],
    ]
    values = js(
        '[sum(a, "a"), String(sum(a, "b")), String(sum(a, "c")), String(sum(a, "d"))]', text
    )
    assert values == [2499, "Infinity", "NaN", "-Infinity"]


@pytest.mark.parametrize("line", ["a", "a{x=1} 2", 'a{x="1" 2', "a one", "<html>", "1a 2"])
def test_what_is_not_the_text_format_is_refused(js, line):
    with pytest.raises(Exception, match="exposition: a line must be"):
        js("0", f"ok 1\n{line}\n")


def test_every_sample_of_the_real_exposition_is_read_as_prometheus_client_reads_it(js):
    metrics = Runtime(Settings(), StubEngine()).metrics
    metrics.request_ended("mlp", "ok", 0.0123)
    text = metrics.render().decode()
    read = js(
        "[...a].flatMap(([n, s]) => [...s.values()].map((v) => [n, v.labels, v.value]))", text
    )
    expected = [
        [sample.name, sample.labels, sample.value]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    order = json.dumps
    assert sorted(read, key=order) == sorted(expected, key=order)


def test_increases_of_counters_only(js):
    before = series("n_total", x=5, y=7) + "gauge 3\nother_count 4\n"
    after = series("n_total", x=9, y=7) + "gauge 1\nother_count 6\n"
    grown = js('Object.fromEntries(sumBy(increases(a, b), "n_total", "k"))', before, after)
    assert grown == {"x": 4, "y": 0}
    assert js('sum(increases(a, b), "other_count")', before, after) == 2
    assert js('sum(increases(a, b), "gauge")', before, after) is None


def test_a_counter_that_fell_was_reset(js):
    before, after = series("n_total", x=50, y=1), series("n_total", x=3, y=2)
    assert js('Object.fromEntries(sumBy(increases(a, b), "n_total", "k"))', before, after) == {
        "x": 3,
        "y": 1,
    }


def test_another_process_started_from_nought_even_if_it_has_overtaken_the_last(js):
    before = series("n_total", x=5) + "process_start_time_seconds 1.5e9\n"
    after = series("n_total", x=7) + "process_start_time_seconds 1.6e9\n"
    assert js('sum(increases(a, b), "n_total")', before, after) == 7
    assert js('sum(increases(a, a), "n_total")', before) == 0


def test_a_series_that_appears_has_grown_from_nought(js):
    assert js('sum(increases(a, b), "n_total")', "", series("n_total", x=4)) == 4


def test_increases_add_up_over_a_reset(js):
    texts = [series("n_total", x=x) for x in (10, 14, 3, 8)]
    steps = "[increases(a, b), increases(b, c), increases(c, d)]"
    assert js(f'sum(merge({steps}), "n_total")', *texts) == 4 + 3 + 5


@pytest.mark.parametrize(
    ("q", "counts", "expected"),
    [
        # Ten in (1, 2]: evenly spread, as histogram_quantile has it.
        (0.5, (0, 10, 10, 10), 1.5),
        (0.9, (0, 10, 10, 10), 1.9),
        (1.0, (0, 10, 10, 10), 2.0),
        # The first bucket begins at 0.
        (0.5, (4, 4, 4, 4), 0.5),
        # Half in (0, 1], half in (2, 4]; (1, 2] is empty.
        (0.5, (5, 5, 10, 10), 1.0),
        (0.75, (5, 5, 10, 10), 3.0),
        # Beyond the last bound.
        (0.99, (0, 0, 1, 10), 4.0),
        (0.5, (0, 0, 0, 10), 4.0),
        (0.0, (0, 10, 10, 10), 1.0),
        (0.5, (0, 0, 0, 0), None),
    ],
)
def test_quantiles(js, q, counts, expected):
    found = js(f'quantile({q}, buckets(a, "h"))', histogram("h", *counts))
    assert found == (None if expected is None else pytest.approx(expected))


def test_quantile_without_a_histogram(js):
    assert js('quantile(0.5, buckets(a, "h"))', "") is None


def test_buckets_of_several_series_are_added(js):
    text = histogram("h", 1, 2, 3, labels='api="x",') + histogram("h", 0, 4, 4, labels='api="y",')
    assert js('buckets(a, "h").map(([b, n]) => [String(b), n])', text) == [
        ["1", 1],
        ["2", 6],
        ["Infinity", 7],
    ]
    assert js('buckets(a, "h", { api: "y" }).map(([, n]) => n)', text) == [0, 4, 4]


def test_whole_numbers_of_batch_buckets(js):
    #         1  2  3-4  5-8  over 8
    text = histogram("mlp_batch_tokens", 0, 3, 3, 7, 10)
    assert js('batchRows(a, "tokens").map(({ label, count }) => [label, count])', text) == [
        ["2", 3],
        ["3–4", 0],
        ["5–8", 4],
        ["over 8", 3],
    ]
    assert js('batchRows(a, "tokens")[0].share', text) == pytest.approx(0.3)
    assert js('batchRows(a, "requests")', text) == []


def test_mfu_and_shares(js):
    grown = (
        'mlp_requests_total{api="mlp",outcome="ok"} 15\n'
        'mlp_requests_total{api="v2",outcome="ok"} 3\n'
        'mlp_requests_total{api="mlp",outcome="queue_full"} 2\n'
        "mlp_flops_total 6e12\nmlp_gpu_busy_seconds_total 1.5\n"
    )
    now = "mlp_gpu_peak_flops 1e13\nmlp_queue_tokens 7\n"
    found = js("figures(a, 2, b)", grown, now)
    assert found["requestsPerSecond"] == 10
    assert found["okPerSecond"] == 9
    assert found["notOkShare"] == pytest.approx(0.1)
    assert found["flopsPerSecond"] == 3e12
    assert found["mfu"] == pytest.approx(0.3)
    assert found["busyShare"] == pytest.approx(0.75)
    assert found["queueTokens"] == 7
    assert js("figures(a, 2, a)", grown)["mfu"] is None
    assert js("figures(a, 2, a)", "mlp_requests_total 0\n")["notOkShare"] is None


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("formatNumber(0)", "0"),
        ("formatNumber(7)", "7"),
        ("formatNumber(0.123456)", "0.12"),
        ("formatNumber(0.0004)", "<0.01"),
        ("formatNumber(12345)", "12.3 k"),
        ("formatNumber(999.6)", "1 k"),
        ("formatNumber(999499)", "999 k"),
        ("formatNumber(999500)", "1 M"),
        ("FORMATS.flops(6.88e14)", "688 TFLOP/s"),
        ("FORMATS.perSecond(78.44)", "78.4/s"),
        ("FORMATS.perSecond(34567)", "34.6 k/s"),
        ("FORMATS.hertz(1.98e9)", "1.98 GHz"),
        ("FORMATS.watts(412.3)", "412 W"),
        ("formatBytes(1536)", "1.5 KiB"),
        ("formatBytes(0)", "0 B"),
        ("formatBytes(151 * 2 ** 30)", "151 GiB"),
        ("formatSeconds(0.00000049)", "0.49 µs"),
        ("formatSeconds(0.000123456)", "123 µs"),
        ("formatSeconds(0.0009996)", "1 ms"),
        ("formatSeconds(0.0123)", "12.3 ms"),
        ("formatSeconds(9.5)", "9.5 s"),
        ("formatSeconds(0)", "0 s"),
        ("formatShare(0.4567)", "45.7 %"),
        ("formatShare(1)", "100 %"),
        ("formatShare(0.00003)", "<0.01 %"),
        ("formatShare(null)", "–"),
        ("formatSeconds(null)", "–"),
        ("formatNumber(NaN)", "–"),
        ("formatBytes(Infinity)", "–"),
    ],
)
def test_numbers_in_words(js, call, expected):
    assert js(call) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 1), (0.6, 0.6), (0.61, 0.8), (1, 1), (78, 80), (101, 200), (8.5e13, 1e14), (3e-5, 4e-5)],
)
def test_the_top_of_an_axis(js, value, expected):
    assert js(f"niceCeiling({value})") == expected


def test_a_line_breaks_where_nothing_is_known(js):
    path = js("linePath([[0, 1], [1, null], [2, 3], [3, 4]])")
    assert path == "M0.0 1.0h0M2.0 3.0h0L3.0 4.0"
