import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import DType
from service.errors import InvalidRequest
from service.wire.raw import decode_raw, raw_tokens


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_rows_follow_from_the_length(dtype, tokens):
    body = bytes(range(6 * dtype.itemsize)) * tokens
    tensor = decode_raw(memoryview(body), dtype, None, 6)
    assert (tensor.shape, tensor.tokens, tensor.dtype) == ((tokens, 6), tokens, dtype)
    assert bytes(tensor.data) == body
    assert raw_tokens(len(body), dtype, 6) == tokens


def test_data_is_a_view():
    body = bytearray(24)
    tensor = decode_raw(memoryview(body), DType.FP16, None, 6)
    body[5] = 7
    assert tensor.data[5] == 7


@pytest.mark.parametrize(
    ("shape", "tokens"), [((2, 6), 2), ((2, 1, 6), 2), ((6,), 1), ((0, 6), 0), ((2, 0, 6), 0)]
)
def test_a_declared_shape_is_kept(shape, tokens):
    tensor = decode_raw(memoryview(bytes(tokens * 12)), DType.BF16, shape, 6)
    assert tensor.shape == shape
    assert tensor.tokens == tokens


@pytest.mark.parametrize("length", [1, 11, 13, 23])
def test_part_of_a_row_is_refused(length):
    for decode in (
        lambda: decode_raw(memoryview(bytes(length)), DType.BF16, None, 6),
        lambda: raw_tokens(length, DType.BF16, 6),
    ):
        with pytest.raises(InvalidRequest, match=f"12 bytes .bf16 .*hidden_size 6.*{length}"):
            decode()


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2, 6), "24 bytes for bf16 of shape .2, 6., is 12"),
        ((0, 6), "0 bytes"),
        ((2, 3), "hidden_size 6"),
        ((1, 12), "hidden_size 6"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        decode_raw(memoryview(bytes(12)), DType.BF16, shape, 6)


@given(st.integers(0, 2**60), st.sampled_from(DType), st.integers(1, 2**20))
def test_raw_tokens_is_exact_or_refuses(length, dtype, hidden_size):
    try:
        assert raw_tokens(length, dtype, hidden_size) * hidden_size * dtype.itemsize == length
    except InvalidRequest:
        assert length % (hidden_size * dtype.itemsize) != 0
