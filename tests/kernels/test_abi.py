"""The structs and values of service.kernels.abi are those that a C compiler sees in swiglu.h."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from service.kernels import abi
from tests.csrc.conftest import CSRC

STRUCTS = {
    "swiglu_args_t": abi.Args,
    "swiglu_down_args_t": abi.DownArgs,
    "swiglu_config_t": abi.Config,
    "swiglu_choice_t": abi.Choice,
}
VALUES = {
    "SWIGLU_ABI_VERSION": abi.ABI_VERSION,
    "SWIGLU_CONFIG_AUTO": abi.CONFIG_AUTO,
    **{f"SWIGLU_{item.name}": item.value for item in abi.Status},
    **{f"SWIGLU_{item.name}": item.value for item in abi.DTypeCode},
    **{f"SWIGLU_{item.name}": item.value for item in abi.ActivationCode},
    **{f"SWIGLU_{item.name}": item.value for item in abi.Flag},
    **{f"SWIGLU_RASTER_{item.name}": item.value for item in abi.Raster},
}


def expected_lines() -> list[str]:
    lines = [f"{name} {value}" for name, value in VALUES.items()]
    for name, struct in STRUCTS.items():
        lines.append(f"{name} {ctypes.sizeof(struct)}")
        for field, kind in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f"{name}.{field} {offset} {ctypes.sizeof(kind)}")
    return lines


def program() -> str:
    prints = [f'printf("{name} %d\\n", (int){name});' for name in VALUES]
    for name, struct in STRUCTS.items():
        prints.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            where = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            prints.append(f'printf("{name}.{field} %zu %zu\\n", {where});')
    body = "\n  ".join(prints)
    return f'#include <stdio.h>\n#include "swiglu/swiglu.h"\nint main(void) {{\n  {body}\n}}\n'


def test_layout_and_values_are_those_of_the_header(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    source, binary = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(program())
    flags = ["-std=c11", "-Wall", "-Werror", f"-I{CSRC / 'include'}"]
    subprocess.run(["gcc", *flags, source, "-o", binary], check=True)
    done = subprocess.run([binary], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == expected_lines()


def test_no_field_and_no_function_of_the_header_is_missing():
    header = (CSRC / "include" / "swiglu" / "swiglu.h").read_text()
    for name, struct in STRUCTS.items():
        tag = name.removesuffix("_t")
        body = header.split(f"typedef struct {tag} {{")[1].split(f"}} {name};")[0]
        code = "".join(part.split("*/")[-1] for part in body.split("/*"))
        assert code.count(";") == len(struct._fields_)
    declared = header.count("SWIGLU_API ") - header.count("define SWIGLU_API ")
    assert declared == len(abi.PROTOTYPES)
