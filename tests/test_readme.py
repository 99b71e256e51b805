"""README.md: its commands run, its answers are what comes back, its tables are up to date."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.readme import render
from tests.servers import ServerProcess

README = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run: dates, identifiers, durations.
_VARYING = re.compile(r"^(date|x-request-id|server-timing): .*$", re.MULTILINE)


def blocks() -> list[tuple[str, str, str | None]]:
    """(language, code, expected output or None) of every block that can be run."""
    found = _BLOCK.findall(README.read_text())
    runnable = []
    for index, (language, text) in enumerate(found):
        if language == "text":
            continue
        follows = found[index + 1] if index + 1 < len(found) else ("", "")
        runnable.append((language, text, follows[1] if follows[0] == "text" else None))
    return runnable


def test_there_is_an_example_for_curl_httpx_tritonclient_and_load() -> None:
    code = "\n".join(text for _, text, _ in blocks())
    for word in ("curl", "httpx", "tritonclient", "tilemlp load"):
        assert word in code


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of a server as `make serve` starts it, and the directory that all blocks share.

    With what one of the blocks says that it needs.
    """
    folder = tmp_path_factory.mktemp("readme")
    with ServerProcess(folder / "server.log", client_shared_memory=1) as server:
        yield server.url.removeprefix("http://"), folder


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("language", "text", "expected"), blocks(), ids=[text[:20] for _, text, _ in blocks()]
)
def test_a_block_runs_and_prints_what_the_readme_says(
    running: tuple[str, Path], language: str, text: str, expected: str | None
) -> None:
    address, folder = running
    if "curl " in text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    result = subprocess.run(
        ["bash", "-e"] if language == "bash" else [sys.executable, "-"],
        input=text.replace("localhost:8000", address),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C"},
    )
    assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
    if expected is not None:
        assert normalise(result.stdout) == normalise(expected)


def normalise(text: str) -> str:
    lines = _VARYING.sub(r"\1: varies", text.replace("\r", "")).strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def test_tables_are_what_code_and_results_say() -> None:
    text = README.read_text()
    assert render(text) == text, "run `make readme`"


def test_render_refuses_a_readme_without_a_block() -> None:
    with pytest.raises(ValueError, match="'settings' must stand there once, stands 0 times"):
        render("nothing here")


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
