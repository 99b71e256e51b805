"""Finding and loading libswiglu.so, and what it says of itself."""

from __future__ import annotations

import pytest

from service.errors import StartError
from service.kernels import library as library_module
from service.kernels.abi import Args, Raster
from service.kernels.errors import InvalidArgument, LibraryError
from service.kernels.library import KernelChoice, Library, find_library
from tests.kernels.conftest import build, build_recorder


@pytest.fixture
def places(monkeypatch, tmp_path):
    places = tuple(tmp_path / name / "libswiglu.so" for name in ("beside", "build"))
    for place in places:
        place.parent.mkdir()
    monkeypatch.setattr(library_module, "SEARCHED", places)
    return places


def test_the_one_beside_the_package_comes_first(places):
    places[1].touch()
    assert find_library() == places[1]
    places[0].touch()
    assert find_library() == places[0]


def test_where_it_was_looked_for_is_said(places):
    with pytest.raises(LibraryError) as caught:
        find_library()
    assert isinstance(caught.value, StartError)
    for place in places:
        assert str(place) in str(caught.value)


def test_it_is_looked_for_in_the_package_and_in_the_checkout():
    beside, built = library_module.SEARCHED
    assert beside.parts[-3:] == ("service", "kernels", "libswiglu.so")
    assert built.parts[-3:] == ("build", "csrc", "libswiglu.so")
    assert beside.parents[2] == built.parents[2]


def test_another_abi_version_is_refused(tmp_path):
    path = build_recorder(tmp_path / "libswiglu.so", abi_version=1)
    with pytest.raises(LibraryError, match="ABI version must be 3, is 1"):
        Library(path)


def test_what_is_no_library_is_refused(tmp_path):
    path = tmp_path / "libswiglu.so"
    path.write_text("no library")
    with pytest.raises(LibraryError, match="cannot be loaded"):
        Library(path)


def test_a_library_without_the_functions_is_refused(tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")
    with pytest.raises(LibraryError, match="swiglu_abi_version"):
        Library(build(tmp_path / "libswiglu.so", source))


def test_what_it_holds(host_library):
    assert "cuda=none" in host_library.build_info
    assert [config.id for config in host_library.configs] == list(range(len(host_library.configs)))
    config = host_library.config("pp_128x192_c2x1")
    assert (config.tile_m, config.tile_n, config.granularity, config.all_types) == (
        128,
        96,
        8,
        True,
    )
    with pytest.raises(KeyError):
        host_library.config("nothing")


def test_a_choice_names_a_kernel_an_order_and_a_group(host_library):
    choice = host_library.select(8192, 29568, 8192, 132)
    assert choice != KernelChoice()
    assert not host_library.configs[choice.config].comparison
    assert choice.raster in (Raster.ALONG_M, Raster.ALONG_N)
    assert choice.swizzle >= 1


def test_the_order_of_arguments_reaches_the_library(recorder):
    choice = recorder.library.select(1, 20, 300, 70_000, dtype=4000, activation=500_000)
    assert choice == KernelChoice(1 + 20 + 300 + 70_000 + 4000 + 500_000, Raster.ALONG_N, 4)


def test_a_problem_without_answer_is_refused_in_words(host_library):
    with pytest.raises(InvalidArgument, match="must be 1 or more"):
        host_library.select(0, 8, 8, 132)
    with pytest.raises(InvalidArgument, match="struct_size"):
        host_library.workspace_size(Args())
