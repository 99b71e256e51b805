from itertools import islice, takewhile

import numpy as np
import pytest

from service.load.options import LoadOptions
from service.load.plan import Load, make_loads, make_plans, poisson_arrivals_ns


@pytest.mark.parametrize(
    ("connections", "series"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_a_sweep_doubles_the_connections_up_to_the_given_number(connections, series):
    loads = make_loads(LoadOptions(connections=connections, sweep=True))
    assert loads == [Load(count, None) for count in series]


def test_a_sweep_of_the_open_loop_raises_the_rate():
    loads = make_loads(LoadOptions(connections=5, rate_per_s=400.0, sweep=True))
    assert [load.rate_per_s for load in loads] == [50, 100, 200, 300, 350, 400]
    assert {load.connections for load in loads} == {5}


def test_without_a_sweep_there_is_one_load():
    assert make_loads(LoadOptions(connections=9)) == [Load(9, None)]
    assert make_loads(LoadOptions(connections=9, rate_per_s=2.5)) == [Load(9, 2.5)]


@pytest.mark.parametrize("connections", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_plans_share_the_load_evenly(connections, processes):
    options = LoadOptions(connections=100, processes=processes, max_backlog_requests=10)
    plans = make_plans(options, Load(connections, 60.0), (), ())
    shares = [plan.connections for plan in plans]
    assert sum(shares) == connections
    assert min(shares) >= 1
    assert max(shares) - min(shares) <= 1
    assert len(plans) == min(processes, connections)
    assert sum(plan.rate_per_s for plan in plans) == pytest.approx(60.0)
    assert 10 <= sum(plan.max_backlog_requests for plan in plans) < 10 + len(plans)
    assert len({plan.seed for plan in plans}) == len(plans)


def test_a_closed_loop_has_no_rate():
    assert make_plans(LoadOptions(), Load(8, None), (), ())[0].rate_per_s is None


def test_arrivals_are_poisson():
    times = np.array(list(islice(poisson_arrivals_ns(1000.0, (0, 0)), 20_000)))
    gaps = np.diff(times, prepend=0) / 1e6
    assert (gaps >= 0).all()
    # Exponential: mean and deviation 1 ms, a share of 1/e above the mean, no memory.
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() == pytest.approx(1.0, rel=0.05)
    assert (gaps > 1).mean() == pytest.approx(np.exp(-1), rel=0.05)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


def test_arrivals_are_seeded_and_differ_between_processes():
    def first(seed):
        return list(takewhile(lambda at: at < 10**9, poisson_arrivals_ns(50.0, seed)))

    assert first((1, 0)) == first((1, 0))
    assert len({tuple(first(seed)) for seed in [(1, 0), (1, 1), (2, 0)]}) == 3
