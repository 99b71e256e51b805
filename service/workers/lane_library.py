"""liblane.so: its functions and structures; see csrc/lane/lane.h."""

from __future__ import annotations

import ctypes
from pathlib import Path

_VERSION = 4
_NAME = "liblane.so"
_HERE = Path(__file__).resolve().parent
# Beside this file in an installed package; the build directory of a checkout.
SEARCHED = (_HERE / _NAME, _HERE.parents[1] / "build" / "lane" / _NAME)

_Doubles = ctypes.POINTER(ctypes.c_double)


class Limits(ctypes.Structure):
    """lane_limits_t."""

    _fields_ = [
        ("batch_tokens", ctypes.c_int64),
        ("room_bytes", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("keep_alive_s", ctypes.c_double),
        ("stall_s", ctypes.c_double),
        ("send_s", ctypes.c_double),
    ]


class Counts(ctypes.Structure):
    """lane_counts_t; cells by address."""

    _fields_ = [
        ("bounds", _Doubles),
        ("num_bounds", ctypes.c_int64),
        ("receive", ctypes.c_void_p),
        ("decode", ctypes.c_void_p),
        ("encode", ctypes.c_void_p),
        ("durations", ctypes.c_void_p),
        ("ok", ctypes.c_void_p),
        ("cancelled", ctypes.c_void_p),
        ("last_ok_unix_s", ctypes.c_void_p),
        ("connections_closed", ctypes.c_void_p),
    ]


class Head(ctypes.Structure):
    """lane_head_t."""

    _fields_ = [
        ("head", ctypes.c_char_p),
        ("head_bytes", ctypes.c_int64),
        ("body_bytes", ctypes.c_int64),
        ("answer_bytes", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("tail", ctypes.c_char_p),
        ("tail_bytes", ctypes.c_int64),
        ("request_id", ctypes.c_char_p),
        ("request_id_bytes", ctypes.c_int64),
    ]


class State(ctypes.Structure):
    """lane_state_t."""

    connections: int
    requests: int
    waiting_requests: int
    waiting_tokens: int
    waiting_bytes: int
    oldest_s: float
    given_back: int
    unwanted: int

    _fields_ = [
        ("connections", ctypes.c_int64),
        ("requests", ctypes.c_int64),
        ("waiting_requests", ctypes.c_int64),
        ("waiting_tokens", ctypes.c_int64),
        ("waiting_bytes", ctypes.c_int64),
        ("oldest_s", ctypes.c_double),
        ("given_back", ctypes.c_int64),
        ("unwanted", ctypes.c_int64),
    ]


class Bundle(ctypes.Structure):
    """lane_bundle_t."""

    group: int
    requests: int
    tokens: int
    nbytes: int
    oldest_s: float
    waited_s: float

    _fields_ = [
        ("group", ctypes.c_int64),
        ("requests", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("oldest_s", ctypes.c_double),
        ("waited_s", ctypes.c_double),
    ]


class Answer(ctypes.Structure):
    """lane_answer_t."""

    _fields_ = [
        ("first", ctypes.c_char_p),
        ("first_bytes", ctypes.c_int64),
        ("second", ctypes.c_char_p),
        ("second_bytes", ctypes.c_int64),
        ("sent_s", ctypes.c_double),
        ("queue_s", ctypes.c_double),
        ("execute_s", ctypes.c_double),
    ]


class Refusal(ctypes.Structure):
    """lane_refusal_t."""

    _fields_ = [
        ("first", ctypes.c_char_p),
        ("first_bytes", ctypes.c_int64),
        ("second", ctypes.c_char_p),
        ("second_bytes", ctypes.c_int64),
        ("count", ctypes.c_void_p),
        ("closes", ctypes.c_int32),
    ]


class GivenBack(ctypes.Structure):
    """lane_given_back_t."""

    descriptor: int
    read: int | None
    read_bytes: int

    _fields_ = [
        ("descriptor", ctypes.c_int32),
        ("read", ctypes.c_void_p),
        ("read_bytes", ctypes.c_int64),
    ]


def find_library() -> Path | None:
    """Where it is; None where it was not built."""
    return next((path for path in SEARCHED if path.exists()), None)


def load_library(path: Path) -> ctypes.PyDLL:
    """Its functions, with their types.

    They are short, do not block and are for one thread, so that the interpreter's lock is kept.

    Raises:
        OSError: it cannot be loaded, or is of another version.
    """
    library = ctypes.PyDLL(str(path))
    library.lane_version.argtypes = ()
    library.lane_version.restype = ctypes.c_int32
    found = library.lane_version()
    if found != _VERSION:
        raise OSError(f"{path}: must be of version {_VERSION}, is of {found}; run `make lane`")
    lane, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    address, small = ctypes.c_void_p, ctypes.c_int32
    pointer = ctypes.POINTER
    types: dict[str, tuple[object, ...]] = {
        "lane_create": (lane, pointer(Limits), pointer(Counts), ctypes.c_char_p),
        "lane_destroy": (None, lane),
        "lane_descriptor": (small, lane),
        "lane_state": (pointer(State), lane),
        "lane_learn": (small, lane, pointer(Head)),
        "lane_knows": (small, lane, ctypes.c_char_p, integer),
        "lane_adopt": (small, lane, small),
        "lane_set_open": (None, lane, small),
        "lane_turn": (None, lane, integer, integer),
        "lane_sweep": (None, lane),
        "lane_load": (integer, lane, integer, address, pointer(Bundle)),
        "lane_answer": (None, lane, integer, address, pointer(Answer)),
        "lane_dissolve": (None, lane, integer, address, real, pointer(Refusal), small),
        "lane_refuse_waiting": (None, lane, real, pointer(Refusal)),
        "lane_take_back": (small, lane, pointer(GivenBack)),
        "lane_take_unwanted": (integer, lane),
    }
    for name, (result, *arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
