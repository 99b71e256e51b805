"""The finder of names finds all of them and nothing else, or the other tests would be blind."""

from __future__ import annotations

import pytest

from tests.deploy.promql import metrics, selectors


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("a_total", ["a_total"]),
        ('sum by (le, x) (rate(a_bucket{b=~"c|d", e!="f"}[5m]))', ['a_bucket{b=~"c|d", e!="f"}']),
        ("sum without (api) (rate(a[$__rate_interval])) > 0", ["a"]),
        ("a:b:c_rate5m > on () group_left () d:e", ["a:b:c_rate5m", "d:e"]),
        ("(a / b >= c / d) or c / d", ["a", "b", "c", "d", "c", "d"]),
        ("min_over_time(a[30m]) - min_over_time(a[30m] offset 2h) > 1e9", ["a", "a"]),
        ("changes(a[1h]) >= 2 and on (job, instance) present_over_time(b[1h])", ["a", "b"]),
        ('count(ALERTS{alertstate="firing"}) or vector(0)', ['ALERTS{alertstate="firing"}']),
        ("histogram_quantile(0.99, a_bucket) + 2", ["a_bucket"]),
    ],
)
def test_selectors(expr: str, expected: list[str]):
    assert selectors(expr) == expected
    assert metrics(expr) == {text.partition("{")[0] for text in expected}
