"""Which kernel was fastest at which size on one GPU: written by the tuner, looked up by engines.

Pure but for reading the file. A table is made for one GPU, bf16 and SiLU.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service.kernels.abi import Raster
from service.kernels.errors import LibraryError
from service.kernels.library import KernelChoice, Library

# The tables that ship with the package, by the GPU's name in results files.
TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True)
class Tuned:
    """One way to run a size, and how long that took.

    Attributes:
        config: Name of a kernel.
        raster: `along_m` or `along_n`.
        swizzle: Clusters of tiles worked on together.
        us: Microseconds of a launch in the steady state.
    """

    config: str
    raster: str
    swizzle: int
    us: float


@dataclass(frozen=True, slots=True)
class TunedSize:
    """What the tuner found at one size.

    Attributes:
        hidden: K.
        intermediate: N.
        tokens: M; stands for all numbers of tokens from the next smaller entry's up to this.
        ranked: Fastest first; at least one of each kernel.
    """

    hidden: int
    intermediate: int
    tokens: int
    ranked: tuple[Tuned, ...]


class DispatchTable:
    """The choices of one GPU."""

    def __init__(self, sizes: Iterable[TunedSize], library: Library) -> None:
        """Translate names into the ids of a library.

        Raises:
            LibraryError: the library lacks a kernel that the table names.
        """
        self._kernels = {config.id: config.kernel for config in library.configs}
        self._ranked: dict[tuple[int, int], dict[int, tuple[KernelChoice, ...]]] = {}
        for size in sizes:
            of_shape = self._ranked.setdefault((size.hidden, size.intermediate), {})
            of_shape[size.tokens] = tuple(choice_of(tuned, library) for tuned in size.ranked)
        self._tokens = {shape: sorted(entries) for shape, entries in self._ranked.items()}

    def ranked(self, tokens: int, intermediate: int, hidden: int) -> Sequence[KernelChoice]:
        """Choices for a size, fastest first; none for weights of a shape that was not tuned.

        A number of tokens between two entries gets the larger one's, and one beyond all entries
        the last one's.
        """
        shape = (hidden, intermediate)
        sizes = self._tokens.get(shape)
        if not sizes:
            return ()
        at = min(bisect_left(sizes, tokens), len(sizes) - 1)
        return self._ranked[shape][sizes[at]]

    def best(
        self, tokens: int, intermediate: int, hidden: int, kernel: int | None = None
    ) -> KernelChoice | None:
        """The fastest choice for a size, of one kernel (1 or 2) if asked so; None if not tuned."""
        for choice in self.ranked(tokens, intermediate, hidden):
            if kernel is None or self._kernels[choice.config] == kernel:
                return choice
        return None


def table_path(gpu: str, folder: Path = TABLES) -> Path:
    """Where the table of a GPU, by its slug, is or would be."""
    return folder / f"{gpu}.json"


def read_table(path: Path) -> list[TunedSize]:
    """The sizes of a table; none where there is no file.

    Raises:
        LibraryError: the file is not a table.
    """
    if not path.exists():
        return []
    try:
        return [_size(entry) for entry in json.loads(path.read_text())["sizes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LibraryError(
            f"dispatch table: must be a file that the tuner wrote, is {path}: {error!r}"
        ) from None


def is_measured_under(path: Path, conditions: Mapping[str, object]) -> bool:
    """Whether a file says of itself what is given, such as the GPU that it was measured on."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and all(
        found.get(name) == value for name, value in conditions.items()
    )


def table_of_card(
    path: Path, library: Library, gpu: str, multiprocessors: int
) -> DispatchTable | None:
    """The table in a file; None where there is none, or one of another card.

    Args:
        path: Of the file.
        library: Whose kernels the table must name.
        gpu: The card's full name; an NVIDIA H200 NVL is another card than an H200.
        multiprocessors: Of the card, which MIG and other cuts change.

    Raises:
        LibraryError: the file is not a table, or names kernels that the library lacks.
    """
    if not is_measured_under(path, {"gpu": gpu, "multiprocessors": multiprocessors}):
        return None
    return DispatchTable(read_table(path), library)


def write_table(path: Path, about: dict[str, object], sizes: Sequence[TunedSize]) -> None:
    """Write a table and what it was measured with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "sizes": [asdict(size) for size in sizes]}
    # Whole or not at all: a service may be reading it.
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.replace(path)


def _size(entry: dict[str, Any]) -> TunedSize:
    ranked = tuple(Tuned(**tuned) for tuned in entry["ranked"])
    return TunedSize(entry["hidden"], entry["intermediate"], entry["tokens"], ranked)


def choice_of(tuned: Tuned, library: Library) -> KernelChoice:
    """The choice in the ids of a library.

    Raises:
        LibraryError: the library lacks the kernel.
    """
    try:
        config = library.config(tuned.config)
    except KeyError:
        raise LibraryError(
            f"dispatch table: must name kernels of {library.path}, names {tuned.config}; "
            "`make kernels` builds the library that belongs to a table, "
            "`tilemlp bench kernels --tune` makes a table for another"
        ) from None
    try:
        raster = Raster[tuned.raster.upper()]
    except KeyError:
        raise LibraryError(
            f"dispatch table: raster must be along_m or along_n, is {tuned.raster!r}"
        ) from None
    return KernelChoice(config.id, raster, tuned.swizzle)
