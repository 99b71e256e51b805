"""Settings: each from its variable, each rule with a sentence, and the secret never shown."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from service.config import (
    Settings,
    default_workers,
    load_settings,
    parse_devices,
    parse_layers,
)
from service.errors import ConfigError

# A value for every setting, as its variable is written and as it is read.
GIVEN: dict[str, tuple[str, object]] = {
    "model": ("/models/qwen", Path("/models/qwen")),
    "model_name": ("my-model.v2", "my-model.v2"),
    "preset": ("qwen2.5-7b", "qwen2.5-7b"),
    "layers": ("0-3,7", "0-3,7"),
    "device": ("cuda:1", "cuda:1"),
    "devices": ("0,1", "0,1"),
    "backend": ("fused", "fused"),
    "dispatch": ("kernel2", "kernel2"),
    "autotune": ("true", True),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("0", 0),
    "api_key": ("correct horse", SecretStr("correct horse")),
    "workers": ("4", 4),
    "max_batch_tokens": ("512", 512),
    "max_queue_tokens": ("1024", 1024),
    "max_queue_bytes": ("1048576", 1 << 20),
    "max_queue_delay_s": ("0.002", 0.002),
    "max_body_bytes": ("65536", 1 << 16),
    "max_json_bytes": ("4096", 4096),
    "client_shared_memory": ("1", True),
    "request_timeout_s": ("2.5", 2.5),
    "receive_timeout_s": ("7", 7.0),
    "keep_alive_s": ("5", 5),
    "drain_delay_s": ("0", 0.0),
    "shutdown_grace_s": ("3", 3.0),
    "self_test_interval_s": ("0", 0.0),
    "hang_timeout_s": ("2", 2.0),
    "log_level": ("debug", "debug"),
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.upper().startswith("MLP_")]:
        monkeypatch.delenv(name)


def sentence(**overrides: object) -> str:
    """What a user reads who gives these settings."""
    with pytest.raises(ConfigError) as refusal:
        load_settings(**overrides)
    return str(refusal.value)


def test_the_defaults_are_a_valid_whole():
    settings = load_settings()
    assert settings == Settings()
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 8000, None)
    assert settings.max_queue_delay_s == 0, "greedy"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_described(name: str):
    info = Settings.model_fields[name]
    assert info.description
    assert info.description.endswith(".")
    assert info.description[0].isupper()


def test_every_quantity_has_its_unit_in_its_name():
    for name, info in Settings.model_fields.items():
        if info.annotation in (int, float) and name not in ("port", "workers"):
            assert name.endswith(("_s", "_bytes", "_tokens")), name


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_its_variable(name: str, monkeypatch: pytest.MonkeyPatch):
    text, value = GIVEN[name]
    assert getattr(Settings(), name) != value, "the test would not see a difference"
    monkeypatch.setenv(f"MLP_{name.upper()}", text)
    # Settings that must fit to this one get out of its way.
    around = {
        "max_queue_bytes": {"max_body_bytes": 1024},
        "max_queue_tokens": {"max_batch_tokens": 1},
    }
    assert getattr(load_settings(**around.get(name, {})), name) == value


def test_all_variables_together(monkeypatch: pytest.MonkeyPatch):
    for name, (text, _) in GIVEN.items():
        monkeypatch.setenv(f"MLP_{name.upper()}", text)
    assert dict(load_settings()) == {name: value for name, (_, value) in GIVEN.items()}


def test_a_flag_beats_a_variable_and_a_variable_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLP_PORT", "9000")
    assert load_settings(port=None).port == 9000
    assert load_settings(port=9100).port == 9100
    assert load_settings(port=0).port == 0


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1


def test_a_setting_that_does_not_exist_is_refused():
    assert sentence(max_batch_size=3).startswith("max_batch_size: ")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("model_name", "m" * 129, "at most 128 characters"),
        ("model_name", "a/b", "should match pattern"),
        ("model_name", "name\n", "should match pattern"),
        ("preset", "qwen3-8b", "'qwen2.5-0.5b', 'qwen2.5-1.5b'"),
        ("device", "tpu", "should match pattern"),
        ("port", 65536, "less than or equal to 65535"),
        ("port", -1, "greater than or equal to 0"),
        ("port", "http", "valid integer"),
        ("max_batch_tokens", 0, "greater than or equal to 1"),
        ("max_queue_delay_s", -0.1, "greater than or equal to 0"),
        ("max_queue_delay_s", 10.5, "less than or equal to 10"),
        ("max_queue_delay_s", "nan", "finite number"),
        ("max_body_bytes", 1023, "greater than or equal to 1024"),
        ("max_json_bytes", 1023, "greater than or equal to 1024"),
        ("request_timeout_s", -1.0, "greater than or equal to 0"),
        ("request_timeout_s", "nan", "finite number"),
        ("shutdown_grace_s", "inf", "finite number"),
        ("receive_timeout_s", 0.0, "greater than 0"),
        ("keep_alive_s", 0, "greater than or equal to 1"),
        ("drain_delay_s", -1.0, "greater than or equal to 0"),
        ("shutdown_grace_s", 0.0, "greater than 0"),
        ("self_test_interval_s", -1.0, "greater than or equal to 0"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_a_refusal_names_setting_rule_and_value(name: str, value: object, rule: str):
    text = sentence(**{name: value})
    assert text.startswith(f"{name}: ")
    assert rule in text
    assert text.endswith(f", is {value!r}")


def test_all_that_is_wrong_is_said_at_once():
    text = sentence(port=70000, device="tpu", keep_alive_s=0)
    for part in ("port: ", "is 70000", "device: ", "is 'tpu'", "keep_alive_s: "):
        assert part in text


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        (
            {"max_batch_tokens": 10, "max_queue_tokens": 9},
            {"max_batch_tokens": 10, "max_queue_tokens": 10},
            "max_queue_tokens: must be at least max_batch_tokens (10) for a full batch to be "
            "admitted, is 9",
        ),
        (
            {"max_body_bytes": 2048, "max_queue_bytes": 2047},
            {"max_body_bytes": 2048, "max_queue_bytes": 2048},
            "max_queue_bytes: must be at least max_body_bytes (2048) for the largest body to be "
            "admitted, is 2047",
        ),
        (
            {"drain_delay_s": 2.0, "shutdown_grace_s": 2.0},
            {"drain_delay_s": 1.9, "shutdown_grace_s": 2.0},
            "drain_delay_s: must be below shutdown_grace_s (2.0), is 2.0",
        ),
    ],
)
def test_settings_that_must_fit_together(
    wrong: dict[str, object], right: dict[str, object], expected: str
):
    assert sentence(**wrong) == expected
    load_settings(**right)


def test_the_secret_is_shown_nowhere():
    key = "correct horse battery"
    settings = load_settings(api_key=key)
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == key
    for shown in (repr(settings), str(settings), settings.model_dump_json(), f"{settings.api_key}"):
        assert key not in shown


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "hunter2"},
        {"api_key": "hunter2", "port": "x"},
        {"api_key": "hunter2 and more", "log_level": "loud"},
        {"api_key": "hunter2 and more", "drain_delay_s": 99.0},
    ],
    ids=["too short", "too short and more", "beside a bad one", "beside two that do not fit"],
)
def test_the_secret_is_in_no_refusal(settings: dict[str, object]):
    with pytest.raises(ConfigError) as refusal:
        load_settings(**settings)
    assert "hunter2" not in "".join(traceback.format_exception(refusal.value))


def test_a_key_that_is_too_short_is_refused_by_name():
    text = sentence(api_key="hunter2")
    assert text.startswith("api_key: ")
    assert "at least 8" in text
    assert text.endswith("is ***")


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,4,8-11", (0, 4, 8, 9, 10, 11)),
        ("8-9,0", (0, 8, 9)),
        ("5,5,4-5", (4, 5)),
        (" 1 , 2-3 ", (1, 2, 3)),
        ("007", (7,)),
        ("9999", (9999,)),
    ],
)
def test_layers(text: str, layers: tuple[int, ...]):
    assert parse_layers(text) == layers


@given(st.sets(st.integers(0, 9999), min_size=1, max_size=50))
def test_layers_as_a_list(layers: set[int]):
    assert parse_layers(",".join(map(str, layers))) == tuple(sorted(layers))


_NOT_LAYERS = [",", "1,", "1,,2", "-1", "1-", "-", "1--2", "0x1", "+1", "1.0", "a", "²", "٣"]
_NOT_LAYERS += ["0-²", "0-٣", "10000", "0-10000", "0-99999999999"]


@pytest.mark.parametrize("text", ["", " ", *_NOT_LAYERS, "9" * 5000])
def test_a_text_that_is_not_layers(text: str):
    with pytest.raises(ConfigError) as refusal:
        parse_layers(text)
    assert str(refusal.value) == (
        "layers: must be like 0-23 or 0,4,8-11 with numbers below 10000, is " + repr(text[:80])
    )


@pytest.mark.parametrize("text", ["3-1", "9999-0"])
def test_layers_that_cannot_be(text: str):
    with pytest.raises(ConfigError) as refusal:
        parse_layers(f"0,{text}")
    assert str(refusal.value) == (f"layers: a range must ascend, is {text!r}")


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - {"api_key"}))
def test_an_empty_variable_is_as_if_not_given(name: str, monkeypatch: pytest.MonkeyPatch):
    """As compose files leave it; MLP_HOST= once meant every interface."""
    monkeypatch.setenv(f"MLP_{name.upper()}", "")
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    assert getattr(load_settings(), name) == default


def test_an_empty_api_key_is_refused_rather_than_taken_for_no_key(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("MLP_API_KEY", "")
    with pytest.raises(ConfigError, match=r"^api_key: must have at least 8 characters"):
        load_settings()


def test_a_misspelt_variable_is_refused_rather_than_ignored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLP_PROT", "9000")
    with pytest.raises(ConfigError, match=r"^MLP_PROT: must be a setting, is none"):
        load_settings()


@pytest.mark.parametrize("text", ["abc", "0,", "cuda:0", "0, 1", "", "-1"])
def test_devices_that_are_no_numbers(text: str):
    with pytest.raises(ConfigError, match=f"devices: must be numbers of GPUs .*, is '{text}'"):
        parse_devices(text)


def test_devices():
    assert parse_devices("2,0,11") == (2, 0, 11)
    with pytest.raises(ConfigError, match="devices: must name each GPU once, is '1,1'"):
        parse_devices("1,1")


def test_front_ends_by_default():
    found = [default_workers(cores) for cores in (1, 2, 7, 8, 12, 16, 64)]
    assert found == [0, 0, 0, 4, 6, 8, 8]
