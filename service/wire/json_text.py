"""JSON as Python reads it, and lists of numbers to fp32 and back."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from itertools import chain
from typing import cast

from service.engine.base import Buffer
from service.errors import InvalidRequest
from service.wire.quoting import quote
from service.wire.tensor import MAX_DIMENSIONS

_NUMBERS = frozenset({int, float})


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys appear once: readers disagree about which of two would count."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"JSON: a key must appear once, {quote(twice)} appears again")
    return fields


def _parse_float(digits: str) -> float:
    return float(digits)


def _parse_int(digits: str) -> int:
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
# Parsing a text is one call of C code, and no other thread runs before it returns: 16 MiB stalled
# the event loop for 447 ms, and 12 ms with number parsers written in Python, which let go of the
# GIL when asked to.
_LONG_TEXT_BYTES = 1 << 15
_LONG_TEXT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_parse_float, parse_int=_parse_int
)


def load_json(text: memoryview) -> object:
    """Parse UTF-8 JSON; NaN, Infinity and -Infinity are numbers, as Triton's client sends them.

    Raises:
        InvalidRequest: not UTF-8, not JSON, nested beyond Python's stack, a repeated key or an
            integer of more digits than Python converts (4300).
    """
    decoder = _DECODER if text.nbytes < _LONG_TEXT_BYTES else _LONG_TEXT_DECODER
    try:
        return decoder.decode(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"JSON: must be UTF-8, byte {error.start} is not") from None
    except RecursionError:
        raise InvalidRequest("JSON: nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(f"JSON: {error}") from None


def flatten_numbers(nested: list[object], name: str) -> tuple[tuple[int, ...], Buffer]:
    """Shape and fp32 bytes (native order, writable) of a rectangular nest of numbers.

    Numbers round to the nearest fp32 and beyond its range become ±infinity, as in numpy and
    Triton.

    Args:
        nested: Lists of lists of numbers, of up to MAX_DIMENSIONS levels.
        name: The argument's name for messages.

    Raises:
        InvalidRequest: ragged, too deep, something other than a number, or an integer beyond
            the range of a double.
    """
    shape = [len(nested)]
    rows = [nested]
    while rows and rows[0] and isinstance(rows[0][0], list):
        if len(shape) == MAX_DIMENSIONS:
            raise InvalidRequest(f"{name}: must have at most {MAX_DIMENSIONS} dimensions")
        below = list(chain.from_iterable(rows))
        rows = [item for item in below if isinstance(item, list)]
        lengths = set(map(len, rows))
        if len(rows) < len(below) or len(lengths) > 1:
            mixed = "arrays and others" if len(lengths) == 1 else f"lengths {sorted(lengths)[:4]}"
            raise InvalidRequest(
                f"{name}: must be rectangular, dimension {len(shape)} mixes {mixed}"
            )
        shape += lengths
    numbers = array("f")
    for row in rows:
        # Exact types: JSON's true is no number, but Python's True is an int.
        if not _NUMBERS.issuperset(map(type, row)):
            stray = next(value for value in row if type(value) not in _NUMBERS)
            raise InvalidRequest(f"{name}: must hold numbers only, has {quote(stray)}")
        try:
            numbers.fromlist(cast(list[float], row))
        except OverflowError:
            raise InvalidRequest(f"{name}: an integer is beyond the range of a double") from None
    return tuple(shape), memoryview(numbers).cast("B") if numbers else bytearray()


def format_rows(data: Buffer, width: int) -> Iterator[str]:
    """Comma-separated numbers of each row of fp32 data, with NaN and ±Infinity as tokens.

    Nine significant digits read back as the same fp32; the shortest digits of the same value as
    a double take 3.4 times as long and 1.7 times the bytes. One row at a time, so that other
    threads get their turn in a long answer.

    Args:
        data: fp32 in native order; not empty.
        width: Numbers in a row.
    """
    numbers = memoryview(data).cast("B").cast("f")
    template = "%.9g," * width
    for start in range(0, len(numbers), width):
        row = template % tuple(numbers[start : start + width])
        if "n" in row:
            row = row.replace("nan", "NaN").replace("inf", "Infinity")
        # As an integer, -0 would lose its sign in most readers.
        yield row.replace("-0,", "-0.0,")[:-1]
