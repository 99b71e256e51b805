"""What front ends and the engine's process say to each other: records of 64 bytes, packed.

A message holds one record or several, each directly followed by its text where it has one. No
tensor travels in a record: only where it lies in the memory that both processes see.

    from a front end
    READY                                       it can take connections
    ADMIT    tokens nbytes body_bytes           reserve budget, and a slot of body_bytes
    GROW     tokens nbytes                      hold so much budget instead
    PLACE    nbytes                             hold a slot of so many bytes instead
    SUBMIT   offset nbytes tokens body_bytes    queue the rows that lie there; first_s: deadline,
             first_s layer flag                 infinite for none; flag: `pack_form`; text, where
                                                tensors are in clients' memory: `pack_windows`
    SHARED   as SUBMIT                          both ADMIT, of nbytes and no slot, and SUBMIT, of an
                                                input in clients' memory
    BUNDLE   as SUBMIT, without text            the same for the rows of several requests, in a
                                                room; body_bytes: how many requests, second_s:
                                                what all of them have waited
    CANCEL                                      the client has left
    RELEASE                                     what the request holds is not needed any more
    ASK      flag                               send a document
    REGION   text                               register, unregister or show regions of clients'
                                                memory: `service.workers.regions`

    from the engine's process
    HELLO    text                               what is served, as JSON; the first record of all
    HEALTH   flag text                          the phase, and why not ready
    CONNECTION                                  a client's; a file descriptor comes with it
    STOP                                        drain, then end
    ROOM     offset nbytes                      it may place bundles there from now on
    GRANT    offset nbytes                      answers ADMIT, GROW and PLACE: the slot
    DONE     offset nbytes tokens first_s       answers SUBMIT and BUNDLE: where the answer lies,
             second_s text flag                 rows of the batch, queue and execute time, kernel;
                                                flag 1: slots are short, take it out at once
    FAILED   text                               answers any of them: code and sentence
    TEXT     flag text                          answers ASK and REGION: a piece of a document;
                                                flag 1 with the last one

`request` is the number of the request or bundle that a record is about, chosen by the front end.
"""

from __future__ import annotations

import json
import struct
from dataclasses import astuple
from enum import IntEnum
from typing import NamedTuple

from service.engine.base import DType, Output
from service.errors import ServiceError
from service.wire.window import Window

_FIXED = struct.Struct("<BBHIQqqqqdd")
RECORD_BYTES = _FIXED.size
# Of a text in one record; with it, a message stays below the least socket buffer.
MAX_TEXT_BYTES = 32 << 10


class Kind(IntEnum):
    """What a record says."""

    READY = 1
    ADMIT = 2
    GROW = 3
    PLACE = 4
    SUBMIT = 5
    CANCEL = 6
    RELEASE = 7
    ASK = 8
    HELLO = 9
    HEALTH = 10
    CONNECTION = 11
    STOP = 12
    GRANT = 13
    DONE = 14
    FAILED = 15
    TEXT = 16
    REGION = 17
    BUNDLE = 18
    ROOM = 19
    SHARED = 20


class Document(IntEnum):
    """What a front end can ask for."""

    METRICS = 1
    STATISTICS = 2


class Record(NamedTuple):
    """One record; what its fields mean is said per kind above."""

    kind: int
    flag: int = 0
    layer: int = 0
    request: int = 0
    offset: int = 0
    nbytes: int = 0
    tokens: int = 0
    body_bytes: int = 0
    first_s: float = 0.0
    second_s: float = 0.0
    text: bytes = b""


def pack(record: Record) -> bytes:
    """A record as it travels.

    Raises:
        ValueError: its text is too long, which no client may bring about: a bug.
    """
    kind, flag, layer, request, *numbers, text = record
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(
            f"record: text must have at most {MAX_TEXT_BYTES} bytes, that of "
            f"{Kind(kind).name} has {len(text)}"
        )
    return _FIXED.pack(kind, flag, layer, len(text), request, *numbers) + text


def unpack(message: memoryview) -> list[Record]:
    """The records of a message."""
    records = []
    start, end = 0, len(message)
    while start < end:
        kind, flag, layer, size, request, offset, nbytes, tokens, body_bytes, first_s, second_s = (
            _FIXED.unpack_from(message, start)
        )
        start += RECORD_BYTES
        text = message[start : start + size].tobytes() if size else b""
        start += size
        # One by one: to gather the rest and spread it again takes as long as all else here.
        records.append(
            Record(
                kind,
                flag,
                layer,
                request,
                offset,
                nbytes,
                tokens,
                body_bytes,
                first_s,
                second_s,
                text,
            )
        )
    return records


_DTYPES = tuple(DType)
_OUTPUTS = tuple(Output)


def pack_form(output: Output, dtype: DType, output_dtype: DType) -> int:
    """Output and element types of a request in one byte."""
    types = _DTYPES.index(dtype) * len(_DTYPES) + _DTYPES.index(output_dtype)
    return types * len(_OUTPUTS) + _OUTPUTS.index(output)


def unpack_form(form: int) -> tuple[Output, DType, DType]:
    """(output, dtype, output dtype) of `pack_form`."""
    types, output = divmod(form, len(_OUTPUTS))
    dtype, output_dtype = divmod(types, len(_DTYPES))
    return _OUTPUTS[output], _DTYPES[dtype], _DTYPES[output_dtype]


def pack_windows(source: Window | None, target: Window | None) -> bytes:
    """Where input and answer lie in clients' memory."""
    return json.dumps([window and astuple(window) for window in (source, target)]).encode()


def unpack_windows(text: bytes) -> tuple[Window | None, Window | None]:
    """(input, answer) of `pack_windows`; none at all for no text."""
    if not text:
        return None, None
    source, target = (found and Window(*found) for found in json.loads(text))
    return source, target


def pack_error(error: BaseException) -> bytes:
    """Code and sentence of an error."""
    code = error.code if isinstance(error, ServiceError) else ServiceError.code
    return f"{code}\n{error}".encode()[:MAX_TEXT_BYTES]


def unpack_error(text: bytes) -> ServiceError:
    """The error of `pack_error`, of the same class."""
    code, _, sentence = text.decode(errors="replace").partition("\n")
    return _classes()[code](sentence)


def _classes() -> dict[str, type[ServiceError]]:
    found: dict[str, type[ServiceError]] = {}
    waiting = [ServiceError]
    while waiting:
        current = waiting.pop()
        # A subclass may share its parent's code, the parent is meant then.
        if "code" in vars(current):
            found[current.code] = current
        waiting.extend(current.__subclasses__())
    return found
