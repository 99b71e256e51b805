import io

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.engine.base import DType
from service.errors import InvalidRequest
from service.wire.npy import decode_npy, encode_npy
from service.wire.tensor import WireTensor
from tests.wire.samples import value_or_refusal

NUMPY = {DType.FP32: np.float32, DType.FP16: np.float16, DType.BF16: ml_dtypes.bfloat16}


def saved(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def with_header(text, data=b"", version=1, length=None):
    header = text if isinstance(text, bytes) else text.encode("latin-1")
    size = len(header) if length is None else length
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + size.to_bytes(2 if version == 1 else 4, "little")
        + header
        + data
    )


def decode(body, declared=None):
    return decode_npy(memoryview(body), declared, 6)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(3, 6), (0, 6), (6,), (2, 2, 6), (1,) * 7 + (6,)])
def test_what_numpy_saves_is_read(version, dtype, shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(NUMPY[dtype])
    body = saved(array, version)
    tensor = decode(body)
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    assert bytes(tensor.data) == array.tobytes()
    assert decode(body, dtype) == tensor


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(3, 6), (0, 6), (6,), (2, 0, 6), (2, 2, 6)])
def test_numpy_loads_what_is_written(dtype, shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(NUMPY[dtype])
    header, data = encode_npy(WireTensor(array.tobytes(), dtype, shape))
    assert len(header) % 64 == 0
    assert header + data == saved(array, (1, 0))
    loaded = np.load(io.BytesIO(header + data)).view(NUMPY[dtype])
    np.testing.assert_array_equal(loaded, array)


@given(st.sampled_from(DType), st.lists(st.integers(0, 3), max_size=4), st.data())
def test_round_trip_keeps_every_bit(dtype, lead, data):
    shape = (*lead, 6)
    size = int(np.prod(shape)) * dtype.itemsize
    content = data.draw(st.binary(min_size=size, max_size=size))
    tensor = WireTensor(content, dtype, shape)
    assert decode(b"".join(encode_npy(tensor))) == tensor


def test_bfloat16_as_resaved_without_ml_dtypes():
    array = np.ones((2, 6), ml_dtypes.bfloat16)
    loaded = np.load(io.BytesIO(saved(array)))
    assert loaded.dtype.kind == "V"
    for body in (saved(loaded), saved(array).replace(b"<V2", b"|V2")):
        assert decode(body) == WireTensor(array.tobytes(), DType.BF16, (2, 6))


def test_bits_of_bf16_as_uint16_when_declared():
    body = saved(np.full((1, 6), 0x3F80, np.uint16))
    assert decode(body, DType.BF16).dtype is DType.BF16
    with pytest.raises(InvalidRequest, match="X-Tensor-Dtype: bf16"):
        decode(body)
    with pytest.raises(InvalidRequest):
        decode(body, DType.FP16)


def test_the_data_is_not_copied_and_torch_takes_it_unaligned():
    body = bytearray(b"?" + saved(np.arange(12, dtype=np.float32).reshape(2, 6)))
    tensor = decode(memoryview(body)[1:])
    view = torch.frombuffer(tensor.data, dtype=torch.float32)
    assert view.data_ptr() % 4 != 0 or np.frombuffer(body, np.uint8).ctypes.data % 4 != 0
    assert view.tolist() == list(range(12))
    body[-4:] = np.float32(77).tobytes()
    assert view[-1] == 77


def test_a_declared_dtype_has_to_agree():
    with pytest.raises(InvalidRequest, match="fp16 or absent, is fp32"):
        decode(saved(np.zeros((1, 6), np.float16)), DType.FP32)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((1, 6)), r"'<f8' is not read; convert with .astype\(np.float32\)"),
        (np.zeros((1, 6), ">f4"), r"big-endian; convert with .astype\('<f4'\)"),
        (np.zeros((1, 6), np.int32), "convert with"),
        (np.zeros((1, 6), bool), "convert with"),
        (np.zeros((1, 6), "S4"), "convert with"),
        (np.zeros((1, 6), np.dtype([("a", "<f4")])), "structured"),
        (np.asfortranarray(np.zeros((2, 6), np.float32)), "ascontiguousarray"),
        (np.float32(1), "0-d"),
        (np.zeros((6, 5), np.float32), "hidden_size 6"),
        (np.zeros((1,) * 8 + (6,), np.float32), "8 dimensions"),
    ],
)
def test_other_arrays_are_refused_with_advice(array, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        decode(saved(np.asanyarray(array)))


def test_objects_are_never_unpickled():
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    with pytest.raises(InvalidRequest, match="pickles"):
        decode(saved(np.array([[Bomb()] * 6], dtype=object)))


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 6), }"


def test_headers_of_other_writers_are_read():
    data = bytes(24)
    for header in (
        HEADER,
        HEADER + "\n",
        '{"shape": (1, 6), "fortran_order": False, "descr": "<f4"}   \n',
    ):
        assert decode(with_header(header, data)).shape == (1, 6)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUM",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\x05",
        b"PK\x03\x04" + bytes(60),
        with_header(HEADER, version=4),
        with_header(HEADER, bytes(23)),
        with_header(HEADER, bytes(25)),
        with_header(HEADER),
        with_header(HEADER, length=60000),
        with_header(HEADER, length=70, version=1),
        with_header(HEADER, version=2, length=2**32 - 1),
        with_header(b"\xff\xfe", version=3),
        with_header("{'descr': '<f4', 'fortran_order': False}", bytes(24)),
        with_header(HEADER.replace("(1, 6)", "(True, 6)"), bytes(24)),
        with_header(HEADER.replace("(1, 6)", "[1, 6]"), bytes(24)),
        with_header(HEADER.replace("(1, 6)", "(-1, 6)"), bytes(24)),
        with_header(HEADER.replace("(1, 6)", "(4503599627370496, 0, 6)")),
        with_header(HEADER.replace("(1, 6)", "(1.0, 6)"), bytes(24)),
        with_header(HEADER.replace("False", "0"), bytes(24)),
        with_header(HEADER.replace("'<f4'", "4"), bytes(24)),
        with_header("{[]: 1}"),
        with_header("1"),
        with_header("{"),
        with_header("\x00"),
        with_header("__import__('os').abort()"),
    ],
)
def test_broken_files(body):
    with pytest.raises(InvalidRequest) as error:
        decode(body)
    assert str(error.value).startswith(("npy:", "shape:"))
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("piece", ["(", "[", "{", "-", "~", "not ", "{1:", "lambda:", "1+", "'"])
def test_deep_literals_do_not_hurt(piece):
    with pytest.raises(InvalidRequest):
        decode(with_header(piece * (4096 // len(piece))))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_tensor_or_a_sentence(content):
    for body in (
        content,
        b"\x93NUMPY\x01\x00" + content,
        with_header(content[:100], content[100:]),
    ):
        value_or_refusal(decode, body)


@given(st.integers(0, 90), st.integers(0, 255))
def test_a_flipped_byte_gives_a_tensor_or_a_sentence(index, byte):
    body = bytearray(saved(np.zeros((1, 6), np.float32)))
    body[index] = byte
    tensor = value_or_refusal(decode, body)
    assert tensor is None or tensor.tokens == 1
