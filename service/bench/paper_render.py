"""`tilemlp bench paper --render`: the page and its pictures, as files."""

from __future__ import annotations

from pathlib import Path

from service.bench.paper_page import all_evidence, picture_name, pictures_of, render_page
from service.bench.paper_plot import draw_picture


def write_page(results: Path, tables: Path | None, docs: Path) -> list[Path]:
    """Write the page and its pictures; returns what was written, the page first.

    Raises:
        ConfigError: there is no kernels results file, or a file is not one that a run wrote.
    """
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "paper.md"
    page.write_text(render_page(results, tables))
    written = [page]
    for evidence in all_evidence(results, tables):
        for name in pictures_of(evidence):
            path = docs / picture_name(evidence, name)
            # No date inside: the same results make the same file.
            draw_picture(name, evidence).savefig(path, format="png", metadata={"Software": None})
            written.append(path)
    return written
