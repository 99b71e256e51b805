"""The headers are C, swiglu.h agrees with ctypes, and they are all that the library exports."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest

from tests.csrc import abi
from tests.csrc.conftest import CSRC

HEADER = CSRC / "include" / "swiglu" / "swiglu.h"
HEADERS = sorted(HEADER.parent.glob("*.h"))
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{CSRC / 'include'}"]


@pytest.mark.parametrize(("language", "standard"), [("c", "c11"), ("c++", "c++20")])
@pytest.mark.parametrize("header", [header.name for header in HEADERS])
def test_a_header_compiles_alone(compiler, tmp_path, header, language, standard):
    source = tmp_path / "source"
    source.write_text(f"#include <swiglu/{header}>\n")
    command = [compiler, "-x", language, f"-std={standard}", "-fsyntax-only", *STRICT, str(source)]
    subprocess.run(command, check=True)


def layout_program() -> str:
    lines = []
    for name, struct in (
        ("swiglu_args_t", abi.Args),
        ("swiglu_down_args_t", abi.DownArgs),
        ("swiglu_config_t", abi.Config),
        ("swiglu_choice_t", abi.Choice),
    ):
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        lines += [f'printf("%zu\\n", offsetof({name}, {field}));' for field, _ in struct._fields_]
    return (
        "#include <stdio.h>\n#include <swiglu/swiglu.h>\nint main(void) {"
        + "\n".join(lines)
        + "return 0;}\n"
    )


def test_structs_agree_with_ctypes(compiler, tmp_path):
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(layout_program())
    subprocess.run(
        [compiler, "-x", "c", "-std=c11", *STRICT, str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    expected = []
    for struct in (abi.Args, abi.DownArgs, abi.Config, abi.Choice):
        expected.append(ctypes.sizeof(struct))
        expected += [getattr(struct, field).offset for field, _ in struct._fields_]
    assert [int(line) for line in printed.split()] == expected


def test_enumerators_agree_with_the_mirror():
    text = HEADER.read_text()
    values = {
        name: int(value) for name, value in re.findall(r"\b(SWIGLU_[A-Z0-9_]+) = (\d+)", text)
    }
    assert [values[name] for name in abi.STATUS] == list(range(len(abi.STATUS)))
    for name in (
        "BF16",
        "FP16",
        "SILU",
        "GELU_TANH",
        "RELU",
        "RASTER_AUTO",
        "RASTER_ALONG_M",
        "RASTER_ALONG_N",
    ):
        assert values[f"SWIGLU_{name}"] == getattr(abi, name)
    assert f"#define SWIGLU_ABI_VERSION {abi.ABI_VERSION}\n" in text


def test_only_the_documented_functions_are_exported(library_path):
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm")
    listing = subprocess.run(
        [nm, "-D", "--defined-only", str(library_path)], check=True, capture_output=True, text=True
    )
    exported = {line.split()[-1] for line in listing.stdout.splitlines()}
    text = "".join(header.read_text() for header in HEADERS)
    declared = set(re.findall(r"SWIGLU_API [^;(]*?\b(swiglu_[a-z_]+)\(", text))
    assert exported == declared


def test_status_names(library):
    for status, name in enumerate(abi.STATUS):
        assert library.swiglu_status_name(status).decode() == name
    assert library.swiglu_status_name(99) == b"unknown status"
