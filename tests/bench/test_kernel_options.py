"""What the flags of `tilemlp bench kernels` take, and what they refuse in a sentence."""

from __future__ import annotations

import importlib.util

import pytest

from service.bench.kernel_options import parse_models, parse_tokens, recorded_command
from service.bench.kernel_problem import Size
from service.bench.kernel_variants import VARIANTS, parse_variants
from service.engine.gpus import gpu_slug
from service.errors import ConfigError


def test_models_with_and_without_their_family():
    assert parse_models("0.5b,qwen2.5-72b") == ("qwen2.5-0.5b", "qwen2.5-72b")
    with pytest.raises(ConfigError, match=r"^models: must be among qwen2\.5-0\.5b, .*, is '9b'$"):
        parse_models("0.5b,9b")


def test_tokens_are_numbers_from_one_up():
    assert parse_tokens("1,8192") == (1, 8192)
    for text in ("0", "16,", "-1", "1.5", "many"):
        with pytest.raises(ConfigError, match=r"^tokens: must be numbers from 1 up, is '"):
            parse_tokens(text)


@pytest.mark.parametrize("installed", [True, False])
def test_quack_is_left_out_where_it_is_not_installed(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert ("quack" in parse_variants(",".join(VARIANTS))) == installed
    with pytest.raises(ConfigError, match=r"^variants: must be among eager, .*, is 'cublas'$"):
        parse_variants("eager,cublas")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("", "gpu"),
    ],
)
def test_the_name_of_a_gpu_in_results_files(name, slug):
    assert gpu_slug(name) == slug


def test_operations_and_bytes_of_a_size():
    size = Size("qwen2.5-0.5b", 10)
    assert (size.hidden, size.intermediate) == (896, 4864)
    assert size.flops == 4 * 10 * 896 * 4864
    assert size.bytes == 2 * (10 * 896 + 2 * 4864 * 896 + 10 * 4864)


def test_the_command_is_recorded_without_where_its_files_went():
    flags = ["bench", "kernels", "--results", "/tmp/x", "--tokens", "1,16", "--commit=abc", "--add"]
    assert recorded_command(flags) == "tilemlp bench kernels --tokens 1,16 --add"
    assert recorded_command(["--results=/tmp/x", "--tune"]) == "tilemlp --tune"
