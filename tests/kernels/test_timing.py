"""The timing engine without a GPU: order, medians and lengths of visits."""

from __future__ import annotations

from collections.abc import Iterator

from service.kernels.timing import Steadiness, Timing, Visit, measure


class Scripted:
    """A variant whose visits take what is written down."""

    def __init__(self, times: Iterator[float]) -> None:
        self.times = times
        self.asked: list[Steadiness] = []

    def visit(self, steadiness: Steadiness) -> Visit:
        self.asked.append(steadiness)
        us = next(self.times)
        return Visit(us, watts=us + 100, mhz=us + 1000)


def test_medians_of_the_rounds_in_the_order_asked():
    steadiness = Steadiness(rounds=3)
    variants = {"b": Scripted(iter([3.0, 1.0, 2.0])), "a": Scripted(iter([30.0, 50.0, 40.0]))}
    found = measure(variants, steadiness)
    assert list(found) == ["b", "a"]
    assert found["b"] == Timing(2.0, 102.0, 1002.0, (3.0, 1.0, 2.0))
    assert found["a"].us == 40.0
    assert variants["a"].asked == [steadiness] * 3


def test_a_card_that_does_not_tell_what_it_draws():
    class Silent:
        def visit(self, _: Steadiness) -> Visit:
            return Visit(2.0)

    assert measure({"a": Silent()}, Steadiness(rounds=2))["a"] == Timing(
        2.0, None, None, (2.0, 2.0)
    )


def test_every_round_visits_all_in_an_order_of_its_own():
    names = "abcdef"
    seen: list[str] = []
    variants = {name: Scripted(iter([1.0] * 20)) for name in names}
    measure(variants, Steadiness(rounds=20), seen.append)
    rounds = ["".join(seen[first : first + 6]) for first in range(0, 120, 6)]
    assert all(sorted(one) == list(names) for one in rounds)
    assert len(set(rounds)) > 10


def test_small_batches_are_measured_half_as_long():
    usual = Steadiness()
    assert usual.for_tokens(257) is usual
    assert usual.for_tokens(256) == Steadiness(settle_s=0.04, measure_s=0.06, rounds=3)
