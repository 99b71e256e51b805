"""Looking a size up in a table: pure, so tested without a GPU."""

from __future__ import annotations

import json

import pytest

from service.kernels.abi import Raster
from service.kernels.dispatch_table import (
    TABLES,
    DispatchTable,
    Tuned,
    TunedSize,
    is_measured_under,
    read_table,
    table_path,
    write_table,
)
from service.kernels.errors import LibraryError
from service.kernels.library import KernelChoice

SMALL = (Tuned("pp_64x256_c1x1", "along_m", 1, 5.0), Tuned("k1_64x256_c2x1", "along_m", 1, 6.0))
LARGE = (
    Tuned("k1_128x128_c2x1", "along_n", 8, 50.0),
    Tuned("co_256x192_c1x2", "along_m", 8, 51.0),
    Tuned("k1_128x128_c1x2", "along_m", 2, 52.0),
)
SIZES = [TunedSize(896, 4864, 1024, LARGE), TunedSize(896, 4864, 64, SMALL)]


@pytest.fixture
def table(host_library) -> DispatchTable:
    return DispatchTable(SIZES, host_library)


def choice_of(library, tuned: Tuned) -> KernelChoice:
    raster = Raster[tuned.raster.upper()]
    return KernelChoice(library.config(tuned.config).id, raster, tuned.swizzle)


@pytest.mark.parametrize(
    ("tokens", "entry"),
    [(1, SMALL), (64, SMALL), (65, LARGE), (1024, LARGE), (1025, LARGE), (10**9, LARGE)],
)
def test_a_number_of_tokens_gets_the_next_larger_entry(table, host_library, tokens, entry):
    expected = [choice_of(host_library, tuned) for tuned in entry]
    assert list(table.ranked(tokens, 4864, 896)) == expected
    assert table.best(tokens, 4864, 896) == expected[0]


def test_the_best_of_one_kernel(table, host_library):
    assert table.best(1000, 4864, 896, kernel=1) == choice_of(host_library, LARGE[0])
    assert table.best(1000, 4864, 896, kernel=2) == choice_of(host_library, LARGE[1])
    assert table.best(10, 4864, 896, kernel=1) == choice_of(host_library, SMALL[1])


@pytest.mark.parametrize("shape", [(4864, 897), (4865, 896), (896, 4864)])
def test_a_shape_that_was_not_tuned_has_none(table, shape):
    assert table.best(64, *shape) is None
    assert table.ranked(64, *shape) == ()


def test_an_empty_table_knows_nothing(host_library):
    assert DispatchTable([], host_library).best(64, 4864, 896) is None


def test_what_is_written_is_read_again(tmp_path):
    path = table_path("h200", tmp_path / "new")
    write_table(path, {"gpu": "NVIDIA H200"}, SIZES)
    assert read_table(path) == SIZES
    assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"


def test_no_file_is_an_empty_table(tmp_path):
    assert read_table(tmp_path / "none.json") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sizes": [{"hidden": 1}]}', '{"sizes": 3}'])
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path, text):
    path = tmp_path / "h200.json"
    path.write_text(text)
    with pytest.raises(LibraryError, match=r"^dispatch table: must be a file .*h200\.json"):
        read_table(path)


def test_a_kernel_that_the_library_lacks_is_named(host_library):
    sizes = [TunedSize(8, 8, 1, (Tuned("pp_1x1", "along_m", 1, 1.0),))]
    with pytest.raises(LibraryError, match=r"names pp_1x1; .*--tune"):
        DispatchTable(sizes, host_library)


def test_an_order_that_does_not_exist_is_named(host_library):
    sizes = [TunedSize(8, 8, 1, (Tuned("pp_64x256_c1x1", "diagonal", 1, 1.0),))]
    with pytest.raises(LibraryError, match="raster must be along_m or along_n, is 'diagonal'"):
        DispatchTable(sizes, host_library)


def test_a_file_says_what_it_was_measured_on(tmp_path):
    path = tmp_path / "h200.json"
    assert not is_measured_under(path, {"gpu": "NVIDIA H200"})
    write_table(path, {"gpu": "NVIDIA H200", "multiprocessors": 132}, SIZES)
    assert is_measured_under(path, {"gpu": "NVIDIA H200", "multiprocessors": 132})
    assert not is_measured_under(path, {"gpu": "NVIDIA H200 NVL"})
    assert not is_measured_under(path, {"gpu": "NVIDIA H200", "multiprocessors": 114})
    assert list(tmp_path.iterdir()) == [path]


def test_the_tables_that_ship_fit_the_library(host_library):
    paths = list(TABLES.glob("*.json"))
    assert paths
    for path in paths:
        table = DispatchTable(read_table(path), host_library)
        for size in read_table(path):
            for kernel in (1, 2):
                assert table.best(size.tokens, size.intermediate, size.hidden, kernel) is not None
