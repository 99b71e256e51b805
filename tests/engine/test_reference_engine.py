"""The reference engine as the batcher sees it: segments in, segments out."""

from __future__ import annotations

import pytest
import torch

from service.engine import reference as engine_module
from service.engine.base import Batch, DType, Engine, Output, Segment
from service.engine.reference import ReferenceEngine
from service.engine.weights import TORCH_DTYPES
from service.kernels import reference
from tests.engine.batches import answers, make_batch, make_model, make_segment, to_bytes

CPU = torch.device("cpu")


@pytest.fixture
def engine() -> ReferenceEngine:
    return ReferenceEngine(make_model(), CPU)


def draw(tokens: int, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, 32, generator=generator).to(dtype)


def exact(engine: ReferenceEngine, x: torch.Tensor, batch: Batch) -> torch.Tensor:
    weights, activation = engine._resident.layers[batch.layer], engine.model.activation
    if batch.output is Output.GATED:
        return reference.gated(x, weights.gate_up, activation, torch.float64)
    return reference.mlp(x, weights.gate_up, weights.down, activation, torch.float64)


def test_says_what_it_is(engine: ReferenceEngine) -> None:
    as_protocol: Engine = engine
    assert (as_protocol.backend, as_protocol.device, as_protocol.concurrency) == (
        "reference",
        "cpu",
        1,
    )
    assert as_protocol.kernels == ("reference",)
    assert as_protocol.peak_flops is None
    assert as_protocol.model.layers == (0, 3)


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("output", Output)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu"])
def test_answers_both_outputs_on_every_layer(
    layer: int, output: Output, weights: torch.dtype, activation: str
) -> None:
    engine = ReferenceEngine(make_model(dtype=weights, activation=activation), CPU)
    x = draw(5)
    batch = make_batch(engine.model, [x], layer=layer, output=output)
    report = engine.run(batch)
    torch.testing.assert_close(
        answers(batch)[0].double(), exact(engine, x, batch), rtol=1e-5, atol=1e-6
    )
    assert report.kernel == "reference"
    assert report.kernels == (("reference", report.busy_s),)
    assert set(report.stages) == {"h2d", "compute", "d2h"}
    assert 0 < report.busy_s < 60
    assert all(seconds > 0 for seconds in report.stages.values())


@pytest.mark.parametrize("output", Output)
def test_segments_of_any_size_and_type_share_a_batch(
    engine: ReferenceEngine, output: Output
) -> None:
    dtypes = [torch.bfloat16, torch.float32, torch.float16, torch.bfloat16, torch.float32]
    inputs = [
        draw(tokens, dtype, seed=tokens)
        for tokens, dtype in zip([1, 7, 2, 64, 1], dtypes, strict=True)
    ]
    batch = make_batch(engine.model, inputs, output=output)
    engine.run(batch)
    for x, answer in zip(inputs, answers(batch), strict=True):
        assert answer.shape == (len(x), engine.model.width(output))
        # Half a unit in the last place of the answer's type, and FP32's own error.
        rounding = torch.finfo(answer.dtype).eps / 2
        torch.testing.assert_close(
            answer.double(), exact(engine, x, batch), rtol=rounding + 1e-5, atol=1e-6
        )


@pytest.mark.parametrize("asked", DType)
@pytest.mark.parametrize("sent", DType)
def test_rounds_once_into_the_type_asked_for(
    engine: ReferenceEngine, sent: DType, asked: DType
) -> None:
    x = draw(9, TORCH_DTYPES[sent])
    wide = make_batch(engine.model, [x], output_dtype=DType.FP32)
    narrow = make_batch(engine.model, [x], output_dtype=asked)
    engine.run(wide)
    engine.run(narrow)
    assert torch.equal(answers(narrow)[0], answers(wide)[0].to(TORCH_DTYPES[asked]))


def test_too_large_for_fp16_is_infinite(engine: ReferenceEngine) -> None:
    batch = make_batch(engine.model, [1e4 * draw(4)], output_dtype=DType.FP16)
    engine.run(batch)
    assert answers(batch)[0].isinf().any()
    assert not answers(batch)[0].isnan().any()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_poisoned_row_changes_no_other(engine: ReferenceEngine, poison: float) -> None:
    clean, dirty = draw(6), draw(6)
    dirty[2, 5] = poison
    for output in Output:
        expected = make_batch(engine.model, [clean, clean], output=output)
        batch = make_batch(engine.model, [clean, dirty], output=output)
        engine.run(expected)
        engine.run(batch)
        others = [0, 1, 3, 4, 5]
        assert torch.equal(answers(batch)[0], answers(expected)[0])
        assert torch.equal(answers(batch)[1][others], answers(expected)[1][others])
        assert not answers(batch)[1][2].isfinite().all()


def test_the_same_batch_gives_the_same_bits(engine: ReferenceEngine) -> None:
    inputs = [draw(33, torch.bfloat16), draw(100)]
    first, between, again = (make_batch(engine.model, inputs) for _ in range(3))
    engine.run(first)
    engine.run(make_batch(engine.model, [draw(300, seed=9)], output=Output.GATED))
    engine.run(again)
    assert [bytes(s.output) for s in first.segments] == [bytes(s.output) for s in again.segments]
    assert all(not any(segment.output) for segment in between.segments)


def test_an_answer_survives_the_batches_after_it(engine: ReferenceEngine) -> None:
    batch = make_batch(engine.model, [draw(8)])
    engine.run(batch)
    before = bytes(batch.segments[0].output)
    engine.run(make_batch(engine.model, [draw(8, seed=1)]))
    assert bytes(batch.segments[0].output) == before


def test_reads_buffers_that_cannot_be_written(engine: ReferenceEngine) -> None:
    writable, readonly = (
        make_batch(engine.model, [draw(3), draw(2, torch.bfloat16)], readonly=flag)
        for flag in (False, True)
    )
    engine.run(writable)
    engine.run(readonly)
    assert readonly.segments[0].input.readonly
    for one, other in zip(answers(writable), answers(readonly), strict=True):
        assert torch.equal(one, other)


def test_reads_and_writes_inside_larger_buffers_at_odd_offsets(engine: ReferenceEngine) -> None:
    x, spec = draw(3), engine.model
    plain = make_batch(spec, [x])
    slot, reply = bytearray(b"\x7f" * 1000), bytearray(b"\x7f" * 1000)
    slot[3 : 3 + 384] = to_bytes(x)
    inside = Segment(3, memoryview(slot)[3:387], DType.FP32, memoryview(reply)[5:389], DType.FP32)
    engine.run(plain)
    engine.run(Batch(0, Output.MLP, [inside]))
    assert bytes(inside.output) == bytes(plain.segments[0].output)
    assert set(reply[:5] + reply[389:]) == {0x7F}


def test_reads_buffers_of_other_formats(engine: ReferenceEngine) -> None:
    plain = make_segment(draw(3), 32, DType.FP32)
    shaped = Segment(
        3,
        plain.input.cast("f", [3, 32]),
        DType.FP32,
        memoryview(bytearray(384)).cast("f"),
        DType.FP32,
    )
    engine.run(Batch(0, Output.MLP, [plain]))
    engine.run(Batch(0, Output.MLP, [shaped]))
    assert bytes(shaped.output) == bytes(plain.output)


def test_batches_larger_than_a_block_are_whole(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [draw(5), draw(11, seed=1), draw(1, seed=2)]
    for output in Output:
        whole = make_batch(engine.model, inputs, output=output)
        engine.run(whole)
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "_BLOCK_TOKENS", 4)
            parts = make_batch(engine.model, inputs, output=output)
            engine.run(parts)
        for one, other in zip(answers(whole), answers(parts), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
