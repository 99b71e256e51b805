"""What `tilemlp doctor` says of the kernel library."""

from __future__ import annotations

import re
import sys

import pytest

from service.cli import main
from service.kernels import library as library_module
from service.kernels.abi import ABI_VERSION
from service.kernels.library import default_library


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setenv("MLP_DEVICE", "cpu")
    default_library.cache_clear()
    yield
    default_library.cache_clear()


def line(monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", ["tilemlp", "doctor"])
    with pytest.raises(SystemExit):
        main()
    found = re.search(r"^kernels: +(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert found
    return found.group(1)


def test_where_it_is_and_what_it_was_built_with(monkeypatch, capsys, recorder_path):
    monkeypatch.setattr(library_module, "SEARCHED", (recorder_path,))
    assert line(monkeypatch, capsys) == f"{recorder_path}, ABI {ABI_VERSION}, 1 kernels, recorder=1"


def test_why_there_is_none(monkeypatch, capsys, tmp_path):
    places = (tmp_path / "a.so", tmp_path / "b.so")
    monkeypatch.setattr(library_module, "SEARCHED", places)
    said = line(monkeypatch, capsys)
    assert said == f"must be {places[0]} or {places[1]}, is neither; `make kernels` builds it"
