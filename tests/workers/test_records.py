"""What is packed comes out as it went in."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from service.config import Settings
from service.engine.base import DType, ModelSpec, Output
from service.errors import DeadlineExceeded, EngineDead, QueueFull, ServiceError
from service.wire.window import LONGEST_REGION_NAME, Window
from service.workers.hello import Hello
from service.workers.records import (
    MAX_TEXT_BYTES,
    RECORD_BYTES,
    Kind,
    Record,
    pack,
    pack_error,
    pack_form,
    pack_windows,
    unpack,
    unpack_error,
    unpack_form,
    unpack_windows,
)

_numbers = st.integers(-(2**63), 2**63 - 1)
_seconds = st.floats(allow_nan=False)
_records = st.builds(
    Record,
    st.sampled_from(Kind),
    st.integers(0, 255),
    st.integers(0, 9999),
    st.integers(0, 2**64 - 1),
    _numbers,
    _numbers,
    _numbers,
    _numbers,
    _seconds,
    _seconds,
    st.binary(max_size=200),
)


@given(st.lists(_records, max_size=5))
def test_a_message_of_several_records(records):
    message = b"".join(map(pack, records))
    assert unpack(memoryview(message)) == records
    assert len(message) == sum(RECORD_BYTES + len(record.text) for record in records)


def test_a_record_is_one_cache_line():
    assert len(pack(Record(Kind.READY))) == RECORD_BYTES == 64
    (record,) = unpack(memoryview(pack(Record(Kind.SUBMIT, first_s=math.inf))))
    assert record.first_s == math.inf


@given(*(st.none() | st.builds(Window, st.text(), _numbers, _numbers) for _ in range(2)))
def test_windows(source, target):
    assert unpack_windows(pack_windows(source, target)) == (source, target)
    assert unpack_windows(b"") == (None, None)


def test_the_longest_names_fit_into_a_record():
    window = Window("\U0001f600" * LONGEST_REGION_NAME, 2**62, 2**62)
    assert len(pack(Record(Kind.SUBMIT, text=pack_windows(window, window)))) < MAX_TEXT_BYTES


def test_forms():
    forms = list(product(Output, DType, DType))
    assert [unpack_form(pack_form(*form)) for form in forms] == forms
    assert len({pack_form(*form) for form in forms}) == len(forms)


@pytest.mark.parametrize("kind", [ServiceError, QueueFull, EngineDead, DeadlineExceeded])
def test_errors_keep_class_and_sentence(kind):
    found = unpack_error(pack_error(kind("queue: 3 × full\nor more")))
    assert type(found) is kind
    assert str(found) == "queue: 3 × full\nor more"


def test_a_bug_is_internal_and_a_long_sentence_is_cut():
    assert type(unpack_error(pack_error(KeyError("x")))) is ServiceError
    assert len(pack_error(QueueFull("é" * MAX_TEXT_BYTES))) == MAX_TEXT_BYTES
    unpack_error(pack_error(QueueFull("é" * MAX_TEXT_BYTES)))


def test_hello_carries_all_settings_and_the_key():
    model = ModelSpec("m", 16, 32, (0, 7), "gelu_tanh", DType.BF16)
    settings = Settings(workers=2, api_key=SecretStr("secret-key"), drain_delay_s=0.25)
    hello = Hello(1, 1 << 20, settings, model, "fused", "NVIDIA H200", "why", True)
    assert Hello.unpack(hello.pack()) == hello
