"""What a results file says of the dispatch table's choices."""

from __future__ import annotations

import pytest

from service.bench.kernel_choice import choices_in_short, read_choices


def timing(*rounds_us: float) -> dict[str, object]:
    return {"us": sorted(rounds_us)[len(rounds_us) // 2], "rounds_us": list(rounds_us)}


def size(model: str, tokens: int, **variants: dict[str, object]) -> dict[str, object]:
    return {"model": model, "tokens": tokens, "variants": variants}


RUN = {
    "sizes": [
        size("small", 1, gemm=timing(1, 1, 1), fused=timing(9, 10, 11), pp=timing(11, 12, 13)),
        size("small", 2, fused=timing(10.0, 10.05, 10.1), pp=timing(10, 10, 10)),
        size("large", 1, fused=timing(10, 11, 12), pp=timing(9, 10, 11), co=timing(20, 20, 20)),
        size("large", 2, fused=timing(12, 13, 14), k1=timing(9, 10, 11)),
        size("large", 4, fused=timing(1, 1, 1), gemm=timing(2, 2, 2)),
    ]
}


def test_how_far_behind_the_fastest_and_whether_the_rounds_overlap():
    found = {(it.model, it.tokens): (it.behind, it.apart) for it in read_choices([RUN])}
    assert found == {
        ("small", 1): (0, False),
        ("small", 2): (pytest.approx(0.005), False),
        ("large", 1): (pytest.approx(0.1), False),
        ("large", 2): (pytest.approx(0.3), True),
    }


def test_in_short():
    text = choices_in_short(read_choices([RUN]))
    assert "within 1% of the fastest one that the tuner knows at 2 of 4 sizes" in text
    assert "at the worst 30.0% behind it (large, 2 tokens)" in text
    assert (
        "Of the 2 sizes further behind, the rounds of the two kernels do not overlap at 1." in text
    )
    assert choices_in_short(read_choices([{"sizes": RUN["sizes"][:2]}])).endswith("2 of 2 sizes.")
    assert choices_in_short(read_choices([{"sizes": RUN["sizes"][4:]}, {}])) == ""
