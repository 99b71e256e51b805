import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import DType
from service.errors import InvalidRequest, NotAcceptable, UnsupportedType
from service.wire.media import (
    Encoding,
    Format,
    answer_encoding,
    format_shape,
    parse_accept,
    parse_content_encoding,
    parse_content_type,
    parse_dtype,
    parse_shape,
)
from service.wire.tensor import validate_extents, validate_width
from tests.wire.samples import value_or_refusal

RAW, NPY, JSON = Format.RAW, Format.NPY, Format.JSON
BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32

header_text = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=40),
    st.text(st.sampled_from("application/json*;,=q0.1dtype bf16[]()9 -"), max_size=60),
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, RAW),
        ("", RAW),
        ("application/octet-stream", RAW),
        ("application/x-npy", NPY),
        ("application/json", JSON),
        ("Application/JSON ; charset=utf-8", JSON),
        ("application/x-npy;version=1", NPY),
    ],
)
def test_content_type(value, expected):
    assert parse_content_type(value) is expected


@pytest.mark.parametrize(
    "value", ["text/plain", "application/jsonx", "application", "multipart/form-data; boundary=x"]
)
def test_other_content_types_are_refused_with_the_three_names(value):
    with pytest.raises(UnsupportedType) as error:
        parse_content_type(value)
    for format in Format:
        assert format.value in str(error.value)


def test_the_content_type_of_plain_curl_is_explained():
    with pytest.raises(UnsupportedType, match="curl"):
        parse_content_type("application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    "value", [None, "", " ", "*/*", "application/*", "*/*;q=0.1", "text/html, */*;q=0.8", ","]
)
@pytest.mark.parametrize("request_format", [RAW, NPY])
@pytest.mark.parametrize("dtype", list(DType))
def test_answer_is_like_the_request_by_default(value, request_format, dtype):
    assert parse_accept(value, request_format, dtype) == (request_format, dtype)


@pytest.mark.parametrize(
    ("value", "request_format", "dtype", "expected"),
    [
        ("application/octet-stream", RAW, BF16, (RAW, BF16)),
        ("application/x-npy", RAW, BF16, (NPY, FP32)),
        ("application/x-npy", RAW, FP16, (NPY, FP16)),
        ("application/x-npy", NPY, BF16, (NPY, BF16)),
        ("application/x-npy;dtype=bf16", RAW, BF16, (NPY, BF16)),
        ("application/octet-stream", NPY, BF16, (RAW, BF16)),
        ("application/json", RAW, BF16, (JSON, FP32)),
        ("application/json;dtype=fp32", RAW, BF16, (JSON, FP32)),
        ("application/octet-stream", JSON, FP32, (RAW, FP32)),
        ("application/octet-stream; dtype=BF16", JSON, FP32, (RAW, BF16)),
        ('application/x-npy; dtype="fp16"', JSON, FP32, (NPY, FP16)),
        ("*/*;dtype=fp32", RAW, BF16, (RAW, FP32)),
        # Qualities.
        ("application/json;q=0.5, application/x-npy;q=0.9", RAW, FP16, (NPY, FP16)),
        ("application/json, */*;q=0.1", RAW, BF16, (JSON, FP32)),
        ("application/octet-stream;q=0, */*", RAW, FP16, (NPY, FP16)),
        ("application/*;q=0.5, */*", RAW, FP16, (RAW, FP16)),
        ("application/octet-stream;q=0.2, application/*;q=0.4", RAW, FP16, (NPY, FP16)),
        (
            "application/octet-stream;dtype=fp32;q=0.2, application/octet-stream",
            RAW,
            BF16,
            (RAW, BF16),
        ),
        # Ties: the request's format, then the first.
        ("application/json, application/octet-stream", RAW, BF16, (RAW, BF16)),
        ("application/json, application/x-npy", RAW, BF16, (JSON, FP32)),
        ("application/x-npy, application/json", RAW, FP32, (NPY, FP32)),
        # Ranges that are broken or unknown leave the others alone.
        ("application/json;q=2, application/x-npy;q=0.1", RAW, FP32, (NPY, FP32)),
        ("application/json;dtype=bf16, application/x-npy;q=0.1", RAW, FP32, (NPY, FP32)),
        ("text/plain, application/json;charset=utf-8", RAW, FP32, (JSON, FP32)),
    ],
)
def test_accept(value, request_format, dtype, expected):
    assert parse_accept(value, request_format, dtype) == expected
    long = value + ", text/plain" * 30
    assert parse_accept(long, request_format, dtype) == expected


@pytest.mark.parametrize(
    "value",
    [
        "text/html",
        "application/json;q=0",
        "*/*;q=0",
        "application/json;dtype=bf16",
        "application/octet-stream;dtype=fp64",
        "application/json;q=nan",
        "application/json;q=0.12345",
        ";q=1",
    ],
)
def test_accept_of_nothing_we_write(value):
    with pytest.raises(NotAcceptable, match="application/x-npy"):
        parse_accept(value, RAW, BF16)


def test_dtype():
    assert parse_dtype(None) is BF16
    for dtype in DType:
        assert parse_dtype(dtype.value) is parse_dtype(f" {dtype.value.upper()} ") is dtype
    for value in ("", "float32", "bf16,fp16"):
        with pytest.raises(InvalidRequest, match="bf16, fp16, fp32"):
            parse_dtype(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3,896", (3, 896)),
        (" 3 , 896 ", (3, 896)),
        ("[3, 896]", (3, 896)),
        ("(3, 896)", (3, 896)),
        ("(896,)", (896,)),
        ("0,896", (0, 896)),
        ("1,1,1,1,1,1,1,896", (1, 1, 1, 1, 1, 1, 1, 896)),
        ("9007199254740991", (2**53 - 1,)),
    ],
)
def test_shape(value, expected):
    assert parse_shape(value) == expected
    assert parse_shape(format_shape(expected)) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        ",",
        "3,,896",
        "-1,896",
        "3.0,896",
        "3x896",
        "[3,896",
        "3,896)",
        "[3,896)",
        "+3,896",
        "1_0,896",
        "٣,896",
        "²,896",
        "1,1,1,1,1,1,1,1,896",
        "9007199254740992",
        "94906267,94906267",
        "4503599627370496,0,896",
        "9" * 5000,
        "1," * 5000,
    ],
)
def test_bad_shapes(value):
    with pytest.raises(InvalidRequest) as error:
        parse_shape(value)
    assert str(error.value).lower().startswith(("x-tensor-shape:", "shape:"))
    assert len(str(error.value)) < 200


def test_extents_and_width():
    validate_extents([2, 0, 6])
    for shape in ([], [-1, 6], [2**52, 0, 6], [2**60]):
        with pytest.raises(InvalidRequest):
            validate_extents(shape)
    for shape in ((), (6, 5)):
        with pytest.raises(InvalidRequest, match="hidden_size 6"):
            validate_width(shape, 6)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=8))
def test_shapes_round_trip(extents):
    shape = tuple(extents)
    assert (
        parse_shape(format_shape(shape))
        == parse_shape(str(list(shape)))
        == parse_shape(str(shape))
        == shape
    )


@given(header_text, st.sampled_from(Format), st.sampled_from(DType))
def test_any_header_gives_a_value_or_a_sentence(value, request_format, dtype):
    parsers = (parse_content_type, parse_dtype, parse_shape, parse_content_encoding)
    for parse in (*parsers, answer_encoding):
        value_or_refusal(parse, value, statuses=(400, 415))
    chosen = value_or_refusal(parse_accept, value, request_format, dtype, statuses=(406,))
    if chosen and chosen[0] is JSON and request_format is not JSON:
        assert chosen[1] is FP32


def test_content_encoding():
    for value in (None, "", "identity", " Identity "):
        assert parse_content_encoding(value) is None
    assert parse_content_encoding("gzip") is parse_content_encoding("x-GZIP") is Encoding.GZIP
    assert parse_content_encoding("deflate") is Encoding.DEFLATE
    for value in ("br", "gzip, gzip", "zstd"):
        with pytest.raises(UnsupportedType, match="gzip or deflate"):
            parse_content_encoding(value)


def test_answers_are_compressed_on_explicit_request_only():
    assert answer_encoding("gzip") is answer_encoding(" GZIP") is Encoding.GZIP
    assert answer_encoding("deflate") is Encoding.DEFLATE
    # What requests, aiohttp, httpx and curl --compressed send by themselves.
    for value in (
        None,
        "",
        "identity",
        "gzip, deflate",
        "gzip, deflate, br",
        "deflate, gzip, br, zstd",
        "*",
    ):
        assert answer_encoding(value) is None
