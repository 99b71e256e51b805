"""`tilemlp bench paper --render`: the committed page is what code and results say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from service.bench.kernel_results import KernelRow, write_about, write_rows
from service.bench.paper_evidence import read_evidence
from service.bench.paper_page import all_evidence, picture_name, pictures_of, render_page
from service.bench.paper_results import paper_path, read_paper, write_paper
from service.cli import main
from service.errors import ConfigError
from service.kernels.dispatch_table import write_table
from service.readme import RESULTS
from tests.bench.paper_evidence import make_evidence, make_paper, make_rows
from tests.bench.test_paper_claims import kernel1_wins

DOCS = Path(__file__).parents[2] / "docs"
_PICTURE = re.compile(r"^!\[.+\]\((.+)\)$", re.MULTILINE)


def write_evidence(folder: Path, evidence) -> None:
    write_rows(folder / "h200-kernels.csv", evidence.rows)
    write_about(folder / "h200-kernels.json", evidence.runs)
    write_table(folder / "h200.json", {}, evidence.tuned)
    if evidence.paper:
        write_paper(paper_path(folder, "h200"), evidence.paper)


def test_the_committed_page_is_what_code_and_results_say():
    page = (DOCS / "paper.md").read_text()
    assert page == render_page(RESULTS, None), "run `tilemlp bench paper --render`"
    pictures = _PICTURE.findall(page)
    assert pictures
    for name in pictures:
        assert (DOCS / name).read_bytes().startswith(b"\x89PNG"), name


def test_the_readme_links_to_it():
    assert "(docs/paper.md)" in (DOCS.parent / "README.md").read_text()


def test_page_and_pictures_of_everything(monkeypatch, capsys, tmp_path):
    evidence = make_evidence(kernel1_wins(7), make_paper())
    write_evidence(tmp_path, evidence)
    flags = ["--results", str(tmp_path), "--tables", str(tmp_path), "--docs", str(tmp_path / "d")]
    monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "paper", "--render", *flags])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    page, *pictures = (Path(line) for line in capsys.readouterr().out.splitlines())
    text = page.read_text()
    assert _PICTURE.findall(text) == [
        "paper-h200-speedup.png",
        "paper-h200-peak.png",
        "paper-h200-wins.png",
        "paper-h200-roofline.png",
        "paper-h200-share.png",
        "paper-h200-mismatch.png",
    ]
    assert {picture.name for picture in pictures} == set(_PICTURE.findall(text))
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert "not measured |" not in text.replace("| not measured | not measured |\n", "")
    # Of 0.5B the table has an entry of either kernel, of the other models none.
    assert re.search(
        r"^\| qwen2.5-0.5b \| 256, 1024, 2048, 4096 \|.* 1 \| 1 \|$", text, re.MULTILINE
    )


def cells(text: str, start: str) -> list[str]:
    """Of the first line of a table that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_cells_of_each_table(tmp_path):
    rows = make_rows(kernel1_us=lambda row: row.kernel2_us * 0.9)
    write_evidence(tmp_path, make_evidence(rows, make_paper(speeds=(0.8, 1.25))))
    text = render_page(tmp_path, tmp_path)
    sections = {part.partition("\n")[0]: part for part in text.split("\n### ")}
    row = next(row for row in rows if row.key == ("qwen2.5-0.5b", 4096))
    found = cells(sections["The 20 configurations"], "| qwen2.5-0.5b | 4096 |")
    predicted = row.eager_us - 12 * 4096 * 4864 / 4.39e12 * 1e6
    assert found[2] == f"{row.eager_us:.1f}"
    assert found[8:10] == ["1.56×", "1.46×"]  # 1.5 / 0.96 and 1.4 / 0.96
    assert found[11] == f"{predicted / row.fused_us:.2f}"
    assert found[13] == "Kernel-1"
    found = cells(sections["Bytes and roofline"], "| qwen2.5-0.5b | 4096 |")
    assert found[2:6] == ["319", "1105", "+247 %", "159"]
    found = cells(sections["Share of activation and intermediates"], "| qwen2.5-0.5b | 4096 |")
    assert found[-2:] == ["37.0 %", "1.000"]
    found = cells(sections["torch.compile"], "| qwen2.5-0.5b | 2048 | max-autotune |")
    assert found[3:] == ["80.0", "125 %", "1.60×", "3", "4.5"]
    found = cells(sections["Accuracy by the scale of the weights"], "| qwen2.5-72b | 0.3 |")
    assert found[2:] == ["30.000 %", "0.000 %", "0.000 % (`k1_a`)", "0.000 % (`pp_64x256_c1x1`)"]
    assert "`tilemlp bench paper`" in sections["Conditions"]


def test_other_results_make_another_page(tmp_path):
    write_evidence(tmp_path, make_evidence())
    before = render_page(tmp_path, tmp_path)
    write_evidence(tmp_path, make_evidence(make_rows(fused_us=lambda row: row.eager_us / 2.47)))
    after = render_page(tmp_path, tmp_path)
    claim = "| Speed-up over eager, at best | 2.47×, on 0.5B |"
    assert cells(before, claim)[3] == "different: lower"
    assert cells(after, claim)[3] == "same"


def test_what_was_left_out_is_named(tmp_path):
    paper = make_paper()
    paper.left_out.append("compile qwen2.5-72b 2048 default")
    write_evidence(tmp_path, make_evidence(paper=paper))
    text = render_page(tmp_path, tmp_path)
    assert (
        "Left out, being over the time or refused by torch: compile qwen2.5-72b 2048 default."
        in text
    )


def test_without_times_there_is_a_page_and_no_picture(tmp_path):
    rows = tuple(
        KernelRow(row.model, row.tokens, row.hidden, row.intermediate) for row in make_rows()
    )
    write_evidence(tmp_path, make_evidence(rows[:3]))
    text = render_page(tmp_path, tmp_path)
    assert _PICTURE.findall(text) == []
    assert text.count("\nNot measured.") == 3
    (evidence,) = all_evidence(tmp_path, tmp_path)
    assert pictures_of(evidence) == []
    assert picture_name(evidence, "share") == "paper-h200-share.png"


def test_results_are_read_as_written(tmp_path):
    paper = make_paper()
    write_paper(tmp_path / "h200-paper.json", paper)
    assert read_paper(tmp_path / "h200-paper.json") == paper
    assert read_paper(tmp_path / "h100-paper.json") is None
    (tmp_path / "h200-paper.json").write_text('{"parts": []}')
    with pytest.raises(ConfigError, match="must be a file that `tilemlp bench paper` wrote, is"):
        read_paper(tmp_path / "h200-paper.json")


def test_missing_files_are_said(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold a file \*-kernels.csv"):
        render_page(tmp_path, tmp_path)
    write_rows(tmp_path / "h200-kernels.csv", make_rows())
    with pytest.raises(ConfigError, match="must have the runs that it came from beside it"):
        read_evidence(tmp_path, tmp_path, "h200")


def test_a_row_is_read_with_the_run_that_measured_it(tmp_path):
    slow, fast = make_evidence(make_rows()[:1], read=1e12), make_evidence(make_rows()[1:2])
    write_rows(tmp_path / "h200-kernels.csv", make_rows()[:3])
    write_about(tmp_path / "h200-kernels.json", [*slow.runs, *fast.runs])
    evidence = read_evidence(tmp_path, tmp_path, "h200")
    # The last was measured by neither run that is on file, so it goes by the latest.
    assert [evidence.read_rate(row) for row in evidence.rows] == [1e12, 4.39e12, 4.39e12]
    assert evidence.conditions_of(evidence.rows[0], "fused") == (690.0, 1500.0)
    assert evidence.conditions_of(evidence.rows[0], "eager") is None
    assert evidence.conditions_of(evidence.rows[2], "fused") is None
