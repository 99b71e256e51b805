"""Typed access to the members of a v2 JSON header."""

from __future__ import annotations

from typing import TypeVar

from service.errors import InvalidRequest
from service.wire.quoting import quote
from service.wire.window import LONGEST_REGION_NAME, Window

Object = dict[str, object]
T = TypeVar("T", str, int, bool, list[object], Object)

# Two of them still add up to an int64.
_LARGEST = 2**62
_KINDS: dict[type, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "an array",
    dict: "an object",
}


def member(fields: Object, key: str, kind: type[T], where: str) -> T | None:
    """A member of the wanted type; None where it is absent or null.

    Args:
        fields: The object.
        key: The member's name.
        kind: str, int, bool, list or dict; a bool is no int.
        where: What the object is, as the prefix of a message: `inputs[0].`.

    Raises:
        InvalidRequest: the member is of another type.
    """
    value = fields.get(key)
    if value is None:
        return None
    if type(value) is not kind:
        raise InvalidRequest(f"{where}{key}: must be {_KINDS[kind]}, is {quote(value)}")
    return value


def only_entry(fields: Object, key: str) -> Object | None:
    """The one object in an array of at most one; None where the array is absent or empty.

    Raises:
        InvalidRequest: more than one entry, or not an object.
    """
    entries = member(fields, key, list, "")
    if not entries:
        return None
    if len(entries) > 1:
        raise InvalidRequest(f"{key}: must have one entry, has {len(entries)}")
    entry = entries[0]
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{key}[0]: must be an object, is {quote(entry)}")
    return entry


def parameters_of(fields: Object, where: str) -> Object:
    """The `parameters` of a request, input or output; empty where there are none.

    Raises:
        InvalidRequest: not an object.
    """
    return member(fields, "parameters", dict, where) or {}


def window_of(parameters: Object, where: str) -> Window | None:
    """Where in shared memory an input or output lies; None where its parameters name no region.

    Args:
        parameters: Of the input or output.
        where: What it is, as the prefix of a message: `inputs[0].parameters.`.

    Raises:
        InvalidRequest: of another type, negative, too long, or incomplete.
    """
    region = member(parameters, "shared_memory_region", str, where)
    nbytes = member(parameters, "shared_memory_byte_size", int, where)
    offset = member(parameters, "shared_memory_offset", int, where)
    if region is None:
        if nbytes is not None or offset is not None:
            raise InvalidRequest(f"{where}shared_memory_region: must be given, is absent")
        return None
    validate_region_name(region, f"{where}shared_memory_region")
    for name, value in (("byte_size", nbytes), ("offset", offset or 0)):
        if value is None:
            raise InvalidRequest(f"{where}shared_memory_{name}: must be given, is absent")
        if not 0 <= value < _LARGEST:
            raise InvalidRequest(
                f"{where}shared_memory_{name}: must be 0 to 2**62 - 1, is {quote(value)}"
            )
    assert nbytes is not None
    return Window(region, offset or 0, nbytes)


def validate_region_name(name: str, where: str) -> None:
    """Check what a client calls a region, before it is looked up anywhere.

    Raises:
        InvalidRequest: longer than a region's name can be.
    """
    if len(name) > LONGEST_REGION_NAME:
        raise InvalidRequest(
            f"{where}: must have at most {LONGEST_REGION_NAME} characters, has {len(name)}"
        )
