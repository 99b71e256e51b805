"""Which safetensors file of a checkpoint holds which tensor, read from the headers alone.

Headers are checked against the file's length here, before any weight is loaded, so that a
truncated download is refused with its name instead of failing half way through.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from service.engine.families import read_json_object
from service.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# The format's own limit; beyond it the length field is garbage.
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_GIT_LFS_POINTER = b"version "


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a safetensors file.

    Attributes:
        dtype: The format's name of the element type, such as `BF16`.
        offset: Of its first byte in the file.
        nbytes: Its bytes there; what its shape takes is checked where the shape is.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint: one .safetensors file, or a directory with one or an index.

    Raises:
        CheckpointError: a file is missing, malformed or truncated.
    """
    if path.is_file():
        return read_header(path)
    if (path / SINGLE).is_file():
        return read_header(path / SINGLE)
    if (path / INDEX).is_file():
        return _read_sharded(path / INDEX)
    others = sorted(file.name for file in path.glob("*.bin"))
    hint = f"; {others[0]} is not read, since loading it can run code" if others else ""
    raise CheckpointError(f"model: must hold {SINGLE} or {INDEX}, {path} holds neither{hint}")


def _read_sharded(index: Path) -> dict[str, StoredTensor]:
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"model: {index} must have a weight_map with tensors, has none")
    shards: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted({str(shard) for shard in names.values()}):
        if Path(shard).name != shard:
            raise CheckpointError(
                f"model: weight_map of {index} must name files beside it, names {shard!r}"
            )
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"model: shard {shard} named by {index} must exist, does not")
        shards[shard] = read_header(index.parent / shard)
    tensors: dict[str, StoredTensor] = {}
    for name, shard in names.items():
        if name not in shards[str(shard)]:
            raise CheckpointError(
                f"model: tensor {name} must be in {shard} where {index} says, is not"
            )
        tensors[name] = shards[str(shard)][name]
    return tensors


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, checked against the file's length.

    Raises:
        CheckpointError: the file cannot be read, is no safetensors file or is truncated.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(_LENGTH_BYTES)
            length = struct.unpack("<Q", prefix.ljust(_LENGTH_BYTES, b"\0"))[0]
            text = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
    except OSError as error:
        raise CheckpointError(f"model: {file} must be readable, is not: {error.strerror}") from None
    if prefix == _GIT_LFS_POINTER:
        raise CheckpointError(f"model: {file} must be a safetensors file, is a Git LFS pointer")
    if length > _MAX_HEADER_BYTES or size < _LENGTH_BYTES:
        raise CheckpointError(f"model: {file} must be a safetensors file, is not")
    if len(text) < length:
        _refuse_truncated(file, _LENGTH_BYTES + length, size)
    header = _parse(file, text)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if _LENGTH_BYTES + length + end > size:
        _refuse_truncated(file, _LENGTH_BYTES + length + end, size)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = StoredTensor(
            file,
            entry["dtype"],
            tuple(entry["shape"]),
            offset=_LENGTH_BYTES + length + begin,
            nbytes=end - begin,
        )
    return tensors


def _refuse_truncated(file: Path, expected: int, size: int) -> None:
    raise CheckpointError(
        f"model: {file} must have the {expected} bytes that its header tells of, "
        f"is truncated at {size}"
    )


def _parse(file: Path, text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"model: the safetensors header of {file} must be JSON, is not: {error}"
        ) from None
    if not isinstance(header, dict):
        raise CheckpointError(f"model: the safetensors header of {file} must be a JSON object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not _is_entry(entry):
            raise CheckpointError(
                f"model: the safetensors header of {file} must give dtype, shape and "
                f"data_offsets of {name}, gives {entry!r}"
            )
    return header


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:
        return False
    return offsets[0] <= offsets[1]


def _is_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
