"""The build refuses kernels that spill, serialise their WGMMAs or call functions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.csrc.conftest import CSRC

TOOL = CSRC / "tools" / "nvcc_checked.py"
CLEAN = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
SASS = "Function : kernel\n  /*0010*/  HGMMA.64x192x16.F32.BF16 R24, gdesc[UR8], R24 ;\n"


def script(path, text, *, writes=False):
    """An executable that prints `text` and, as a compiler would, writes the file behind -o."""
    body = [f"#!{sys.executable}", "import sys", f"sys.stdout.write({text!r})"]
    if writes:
        body.append("open(sys.argv[sys.argv.index('-o') + 1], 'w').write('object')")
    path.write_text("\n".join(body) + "\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("report", "sass", "fault"),
    [
        (CLEAN, SASS, None),
        (CLEAN + CLEAN.replace("0 bytes spill stores", "48 bytes spill stores"), SASS, "48 bytes"),
        (CLEAN + "ptxas info : (C7512) Potential Performance Loss\n", SASS, "C7512"),
        ("", SASS, "was -Xptxas -v passed?"),
        (CLEAN, SASS + "  /*0020*/  CALL.REL.NOINC `(slow_path) ;\n", "CALL.REL.NOINC in kernel"),
        (CLEAN, "Function : kernel\n  FFMA R1, R2, R3, R4 ;\n", "no HGMMA"),
    ],
)
def test_what_is_refused(tmp_path, report, sass, fault):
    compiler = script(tmp_path / "nvcc", report, writes=True)
    cuobjdump = script(tmp_path / "cuobjdump", sass)
    result_file = tmp_path / "kernel.o"
    command = [sys.executable, TOOL, "--cuobjdump", cuobjdump, compiler, "-c", "-o", result_file]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result_file.exists() == (fault is None)
    assert (result.returncode == 0) == (fault is None)
    assert (fault or "") in result.stderr


def test_a_disassembler_that_fails_is_a_fault(tmp_path):
    compiler = script(tmp_path / "nvcc", CLEAN, writes=True)
    disassembler = tmp_path / "cuobjdump"
    disassembler.write_text("#!/bin/sh\necho 'no nvdisasm' >&2\nexit 1\n")
    disassembler.chmod(0o755)
    result_file = tmp_path / "kernel.o"
    command = [sys.executable, TOOL, "--cuobjdump", disassembler, compiler, "-c", "-o", result_file]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "failed: no nvdisasm" in result.stderr
    assert not result_file.exists()


def test_a_failing_compiler_keeps_its_words_and_status(tmp_path):
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'error: no such thing'\nexit 3\n")
    compiler.chmod(0o755)
    command = [sys.executable, TOOL, str(compiler), "-c", "-o", str(tmp_path / "kernel.o")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no such thing" in result.stderr
