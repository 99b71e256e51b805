"""Which sizes get a graph: padding, copies and number bounded, for every model."""

from __future__ import annotations

from itertools import pairwise

import pytest

from service.engine.base import DType, ModelSpec, Output
from service.engine.buckets import (
    GRAPH_BYTES,
    MAX_GRAPHS,
    TRIP_FLOPS,
    find_bucket,
    plan_buckets,
    plan_trips,
)
from service.engine.fused import SLOTS
from service.engine.presets import PRESETS


def model(name: str, layers: int | None = None) -> ModelSpec:
    shape = PRESETS[name]
    count = shape.num_layers if layers is None else layers
    return ModelSpec(
        name, shape.hidden_size, shape.intermediate_size, tuple(range(count)), "silu", DType.BF16
    )


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("slots", [1, 3])
def test_graphs_of_a_whole_model_are_few_and_their_copies_short(name: str, slots: int) -> None:
    spec = model(name)
    plan = plan_buckets(spec, 8192, slots)
    assert set(plan) == set(Output)
    assert 0 < sum(map(len, plan.values())) * len(spec.layers) * slots <= MAX_GRAPHS
    for output, buckets in plan.items():
        assert list(buckets) == sorted(set(buckets))
        for bucket in buckets:
            row_bytes = 2 * max(spec.hidden_size, spec.width(output))
            assert bucket * row_bytes <= GRAPH_BYTES
        # As few rows of padding as there are rows: one token must not pay for 64.
        assert buckets[0] == 1
        assert all(after == 2 * before for before, after in pairwise(buckets))


def test_sizes_of_the_smallest_model() -> None:
    plan = plan_buckets(model("qwen2.5-0.5b", 1), 8192, 3)
    assert plan == {Output.MLP: (1, 2, 4, 8, 16, 32, 64, 128), Output.GATED: (1, 2, 4, 8, 16)}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("slots", [1, SLOTS])
def test_trips_of_a_whole_model_are_few_and_go_on_where_graphs_end(name: str, slots: int) -> None:
    spec = model(name)
    small = plan_buckets(spec, 8192, slots)
    plan = plan_trips(spec, 8192, slots, small)
    assert 0 < sum(map(len, plan.values())) * len(spec.layers) * slots <= MAX_GRAPHS
    for output, sizes in plan.items():
        assert spec.flops(output, sizes[-1]) <= TRIP_FLOPS
        for before, after in pairwise((small[output][-1], *sizes)):
            # No more padding than there are rows, than a kernel's tile, or than a quarter.
            assert before < after <= max(2 * before, before + 128, before * 5 // 4)


@pytest.mark.parametrize("name", PRESETS)
def test_trips_of_one_layer_reach_as_far_as_is_worth_it(name: str) -> None:
    spec = model(name, 1)
    for output, sizes in plan_trips(spec, 8192, SLOTS, plan_buckets(spec, 8192, SLOTS)).items():
        assert sizes[-1] == 8192 or spec.flops(output, 2 * sizes[-1]) > TRIP_FLOPS


def test_of_too_many_trips_the_longest_are_left_out() -> None:
    spec = model("qwen2.5-0.5b")
    plan = plan_trips(spec, 8192, SLOTS, plan_buckets(spec, 8192, SLOTS))
    assert sum(map(len, plan.values())) == MAX_GRAPHS // (SLOTS * len(spec.layers)) == 26
    assert plan[Output.MLP] == (*range(256, 1025, 128), 1280, 1536, 1792, 2048)
    assert plan[Output.GATED][-1] == 2560
    flops = [spec.flops(output, size) for output, sizes in plan.items() for size in sizes]
    assert max(flops) < spec.flops(Output.MLP, 2560)


def test_trips_of_known_models() -> None:
    one = model("qwen2.5-0.5b", 1)
    plan = plan_trips(one, 8192, 4, plan_buckets(one, 8192, 4))
    assert plan[Output.MLP] == (
        *range(256, 1024, 128),
        *range(1024, 2048, 256),
        *range(2048, 4096, 512),
        *range(4096, 8193, 1024),
    )
    assert plan[Output.GATED][:5] == (32, 64, 128, 256, 384)
    assert plan[Output.GATED][-1] == 8192
    seven = model("qwen2.5-7b", 1)
    plan = plan_trips(seven, 8192, 4, plan_buckets(seven, 8192, 4))
    assert plan[Output.MLP] == (64, 128, 256, 384, 512, 640)


def test_trips_end_with_the_largest_batch() -> None:
    one = model("qwen2.5-0.5b", 1)
    for most, sizes in ((128, ()), (129, (256,)), (300, (256, 384))):
        assert plan_trips(one, most, 4, plan_buckets(one, most, 4))[Output.MLP] == sizes
    many = model("qwen2.5-0.5b", 500)
    none = {Output.MLP: (), Output.GATED: ()}
    assert plan_trips(many, 8192, 4, plan_buckets(many, 8192, 4)) == none


def test_no_bucket_is_twice_the_largest_batch() -> None:
    assert plan_buckets(model("qwen2.5-0.5b", 1), 5, 3)[Output.MLP] == (1, 2, 4, 8)
    assert plan_buckets(model("qwen2.5-0.5b", 1), 8, 3)[Output.MLP] == (1, 2, 4, 8)
    assert plan_buckets(model("qwen2.5-0.5b", 1), 1, 3)[Output.MLP] == (1,)


def test_many_layers_get_coarser_buckets_and_too_many_none() -> None:
    many = plan_buckets(model("qwen2.5-0.5b", 80), 8192, 3)
    assert many == {Output.MLP: (2, 8, 32, 128), Output.GATED: (1, 4, 16)}
    assert plan_buckets(model("qwen2.5-0.5b", 500), 8192, 3) == {Output.MLP: (), Output.GATED: ()}


def test_all_layers_of_the_largest_model_have_every_bucket() -> None:
    plan = plan_buckets(model("qwen2.5-72b", 80), 8192, SLOTS)
    assert plan == {Output.MLP: (1, 2, 4, 8, 16), Output.GATED: (1, 2, 4)}


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16), (17, None), (9999, None)]
)
def test_a_batch_takes_the_smallest_bucket_that_holds_it(tokens: int, bucket: int | None) -> None:
    assert find_bucket((1, 4, 16), tokens) == bucket


def test_without_buckets_nothing_has_a_graph() -> None:
    assert find_bucket((), 1) is None
