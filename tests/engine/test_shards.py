"""Files of a checkpoint: which are read, and what is refused before any weight is."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from service.engine.shards import INDEX, SINGLE, read_header, read_stored_tensors
from service.errors import CheckpointError
from tests.checkpoints import mlp_tensors, write_checkpoint

DOWN = "model.layers.1.mlp.down_proj.weight"


def test_header_gives_file_type_and_shape(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 2, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    stored = read_header(tmp_path / "x.safetensors")["a"]
    assert (stored.file, stored.dtype, stored.shape) == (tmp_path / "x.safetensors", "BF16", (3, 2))


def test_sharded_tensors_are_found_in_their_shards(tmp_path: Path) -> None:
    tensors = mlp_tensors(layers=2)
    stored = read_stored_tensors(write_checkpoint(tmp_path, tensors, shards=3))
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in stored.items()
    }
    assert len({tensor.file for tensor in stored.values()}) == 3


def test_refuses_a_directory_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read_stored_tensors(tmp_path)
    assert str(refusal.value) == (f"model: must hold {SINGLE} or {INDEX}, {tmp_path} holds neither")


def test_refuses_pickled_weights_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not read, since loading it"):
        read_stored_tensors(tmp_path)


@pytest.mark.parametrize("removed", [1, 100])
def test_refuses_a_truncated_file_with_both_sizes(tmp_path: Path, removed: int) -> None:
    file = write_checkpoint(tmp_path, mlp_tensors()) / SINGLE
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - removed)
    with pytest.raises(CheckpointError) as refusal:
        read_stored_tensors(tmp_path)
    assert str(refusal.value) == (
        f"model: {file} must have the {size} bytes that its header tells of, "
        f"is truncated at {size - removed}"
    )


def test_refuses_a_file_truncated_within_its_header(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path, mlp_tensors()) / SINGLE
    with file.open("r+b") as stream:
        stream.truncate(50)
    with pytest.raises(CheckpointError, match="is truncated at 50"):
        read_stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a safetensors file, is not"),
        (b"\x01\x02", "must be a safetensors file, is not"),
        (b"PK\x03\x04 some zip archive", "must be a safetensors file, is not"),
        (b"version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
        (struct.pack("<Q", 3) + b"{]}", "must be JSON, is not"),
        (struct.pack("<Q", 2) + b"[]", "must be a JSON object"),
    ],
)
def test_refuses_what_is_no_safetensors_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_stored_tensors(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]},
    ],
)
def test_refuses_malformed_header_entries(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CheckpointError, match="must give dtype, shape and data_offsets of a"):
        read_stored_tensors(tmp_path)


def test_refuses_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be readable, is not: No such file"):
        read_header(tmp_path / "gone.safetensors")


def edit_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_refuses_an_index_that_names_a_missing_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mlp_tensors(), shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError) as refusal:
        read_stored_tensors(tmp_path)
    assert str(refusal.value) == (
        f"model: shard model-00002-of-00002.safetensors named by {tmp_path / INDEX} must exist, "
        "does not"
    )


def test_refuses_an_index_that_names_the_wrong_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mlp_tensors(), shards=2)
    edit_index(tmp_path, {DOWN: "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=f"tensor {DOWN} must be in model-00001-of-00002"):
        read_stored_tensors(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}])
def test_refuses_an_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    edit_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="must have a weight_map with tensors, has none"):
        read_stored_tensors(tmp_path)


def test_refuses_an_index_that_points_elsewhere(tmp_path: Path) -> None:
    edit_index(tmp_path, {DOWN: "../other.safetensors"})
    with pytest.raises(CheckpointError, match=r"must name files beside it, names '\.\./other"):
        read_stored_tensors(tmp_path)
