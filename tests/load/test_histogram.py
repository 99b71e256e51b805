import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.load.histogram import LogHistogram

VALUES = st.lists(st.integers(0, 2**44 - 1), min_size=1, max_size=60)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0])


def recorded(values):
    histogram = LogHistogram()
    for value in values:
        histogram.record(value)
    return histogram


def nearest_rank(values, fraction):
    ordered = sorted(values)
    return next(v for i, v in enumerate(ordered, 1) if i >= fraction * len(ordered))


def everything(histogram):
    return [histogram.quantile(i / 20) for i in range(21)] + [
        histogram.count,
        histogram.total,
        histogram.minimum,
        histogram.maximum,
    ]


@given(VALUES, FRACTIONS)
def test_quantile_is_within_four_per_mille_of_the_nearest_rank(values, fraction):
    exact = nearest_rank(values, fraction)
    assert recorded(values).quantile(fraction) == pytest.approx(exact, rel=0.004, abs=0)


@given(VALUES, VALUES)
def test_merging_is_recording_all(first, second):
    merged = recorded(first)
    merged.merge(recorded(second))
    assert everything(merged) == everything(recorded(first + second))


def test_merging_an_empty_one_changes_nothing_and_into_an_empty_one_copies():
    filled = recorded([5, 900_000])
    before = everything(filled)
    filled.merge(LogHistogram())
    assert everything(filled) == before
    empty = LogHistogram()
    empty.merge(filled)
    assert everything(empty) == before


def test_every_bucket_border_is_within_the_promised_error():
    for power in range(44):
        for value in (2**power - 1, 2**power, 2**power + 1):
            # The neighbours keep the clamp to minimum and maximum out of it.
            middle = recorded([0, value, 2**44 - 1]).quantile(0.5)
            assert middle == pytest.approx(value, rel=0.004, abs=0)


def test_small_values_are_exact():
    values = [random.Random(0).randrange(256) for _ in range(1000)]
    histogram = recorded(values)
    for fraction in (0.01, 0.5, 0.77, 0.99):
        assert histogram.quantile(fraction) == nearest_rank(values, fraction)


def test_mean_minimum_and_maximum_are_exact():
    histogram = recorded([1_000_003, 7_000_001, 12])
    assert histogram.mean == 8_000_016 / 3
    assert (histogram.minimum, histogram.maximum) == (12, 7_000_001)
    assert histogram.quantile(1.0) == 7_000_001


def test_beyond_the_last_bucket_only_the_maximum_is_told_apart():
    histogram = recorded([1, 2**60])
    assert histogram.quantile(1.0) == 2**60
    assert histogram.count == 2


def test_empty_has_no_quantile_and_no_mean():
    assert LogHistogram().quantile(0.5) is None
    assert LogHistogram().mean is None


def test_memory_is_constant_and_it_travels_between_processes():
    histogram = recorded(range(0, 10**9, 10**5))
    size = len(pickle.dumps(histogram))
    assert size < 50_000
    assert everything(pickle.loads(pickle.dumps(histogram))) == everything(histogram)
    assert len(pickle.dumps(recorded([1]))) <= size
