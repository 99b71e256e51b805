"""Every setting of the service: one field is one flag, one `MLP_…` variable and one README row."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.cgroups import cores
from service.errors import ConfigError

MIB = 1 << 20

Preset = Literal[
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
]

# Fewer are not worth processes of their own; with more than 8 front ends the engine's process is
# what is busiest.
_MANY_CORES = 8
_MOST_DEFAULT_WORKERS = 8


class Settings(BaseSettings):
    """Settings of `tilemlp serve`, from flags, then `MLP_…` variables, then these defaults."""

    # Compose files leave variables empty that were not set: that means not given.
    model_config = SettingsConfigDict(
        env_prefix="MLP_", env_ignore_empty=True, frozen=True, extra="forbid", allow_inf_nan=False
    )

    model: Path | None = Field(
        default=None,
        description="Hugging Face checkpoint: a directory, or one .safetensors file with its "
        "config.json beside it. Without it, `preset` decides.",
    )
    model_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name that clients use; by default the checkpoint's directory or the preset.",
    )
    preset: Preset = Field(
        default="qwen2.5-0.5b",
        description="Shape to serve with random weights (seed 0) when no `model` is given.",
    )
    layers: str | None = Field(
        default=None,
        description="Layers to make resident, such as `0-23` or `0,4,8-11`; by default all of a "
        "checkpoint and layer 0 of a preset.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Torch device: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is the GPU where "
        "torch finds one.",
    )
    devices: str | None = Field(
        default=None,
        description="GPUs that each get a replica of the weights, such as `0,1`, instead of "
        "`device`. They share one queue; the one with least to do takes the next batch.",
    )
    backend: Literal["auto", "fused", "reference"] = Field(
        default="auto",
        description="What computes: `fused` are the Hopper kernels, `reference` is torch in FP32; "
        "`auto` is `fused` wherever it runs, and says why where it does not.",
    )
    dispatch: Literal["table", "paper", "kernel1", "kernel2"] = Field(
        default="table",
        description="Which fused kernel a batch runs on: the fastest one measured (`table`; the "
        "library's estimate where nothing was), by the `paper`'s rule (Kernel-2 below 2048 tokens, "
        "else Kernel-1), or always the same.",
    )
    autotune: bool = Field(
        default=False,
        description="Measure the fused kernels for this model on this GPU at start, which "
        "takes a while, and keep the table beside the checkpoint, if that folder may be written, "
        "for the next start.",
    )

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    api_key: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="If set, /mlp and /v2 want `Authorization: Bearer <key>`; health and metrics "
        "stay open.",
    )

    workers: int = Field(
        default_factory=lambda: default_workers(cores()),
        ge=0,
        le=64,
        description="Processes that serve HTTP, beside the one with the engine; 0 serves it in the "
        "engine's own. By default half as many as there are cores, 8 at most, and 0 below 8 cores.",
    )

    max_batch_tokens: int = Field(
        default=8192,
        ge=1,
        le=1 << 20,
        description="Rows in one batch at most; a request with more is refused with 413.",
    )
    max_queue_tokens: int = Field(
        default=131072, ge=1, description="Rows admitted and not yet running; beyond it 429."
    )
    max_queue_bytes: int = Field(
        default=1024 * MIB,
        ge=1,
        description="Body bytes admitted and not yet running; beyond it 429.",
    )
    max_queue_delay_s: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="Longest wait of a first request for company while the engine is free, "
        "counted from its arrival. 0 is greedy.",
    )
    max_body_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Largest request body, before and after decompression; beyond it 413.",
    )
    max_json_bytes: int = Field(
        default=4 * MIB,
        ge=1024,
        description="Largest JSON text, sent or answered; beyond it 413.",
    )

    client_shared_memory: bool = Field(
        default=False,
        description="Let clients on this host keep tensors in POSIX shared memory, and in CUDA's "
        "where the fused engine has one GPU, by the Open Inference Protocol's extensions. Whoever "
        "may send requests can then have every object read and written that this service may open "
        "in `/dev/shm`; and a client that frees GPU memory in use may end the service.",
    )

    request_timeout_s: float = Field(
        default=0.0,
        ge=0,
        description="Longest time a request may wait in the queue, then 504; a request can only "
        "shorten it. 0 is no limit.",
    )
    receive_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest time for a body to arrive, then 408; with workers also for a large "
        "answer to be taken, then the connection is cut.",
    )
    keep_alive_s: int = Field(
        default=75,
        ge=1,
        description="Idle time after which a connection is closed; also the longest time for the "
        "rest of a body to arrive that was refused, of which at most 1 GiB is read.",
    )
    drain_delay_s: float = Field(
        default=1.0,
        ge=0,
        description="After SIGTERM: time to answer 503 to new requests before the port closes, "
        "for load balancers to notice.",
    )
    shutdown_grace_s: float = Field(
        default=30.0,
        gt=0,
        description="After SIGTERM: time in which accepted requests are answered.",
    )
    self_test_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds between self-tests with a known answer; 0 turns them off.",
    )
    hang_timeout_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds after which a batch on a GPU counts as hung and the process ends, for "
        "a supervisor to restart it; 0 is never.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )

    @model_validator(mode="after")
    def _limits_fit(self) -> Settings:
        if self.max_queue_tokens < self.max_batch_tokens:
            raise ValueError(
                f"max_queue_tokens: must be at least max_batch_tokens ({self.max_batch_tokens}) "
                f"for a full batch to be admitted, is {self.max_queue_tokens}"
            )
        if self.max_queue_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_queue_bytes: must be at least max_body_bytes ({self.max_body_bytes}) "
                f"for the largest body to be admitted, is {self.max_queue_bytes}"
            )
        if self.drain_delay_s >= self.shutdown_grace_s:
            raise ValueError(
                f"drain_delay_s: must be below shutdown_grace_s ({self.shutdown_grace_s}), "
                f"is {self.drain_delay_s}"
            )
        return self


def default_workers(available: int) -> int:
    """Front ends by default where so many cores are available."""
    return min(_MOST_DEFAULT_WORKERS, available // 2) if available >= _MANY_CORES else 0


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment, overridden by the flags that were given.

    Raises:
        ConfigError: one sentence per setting that is wrong, naming setting, rule and value.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    _check_environment()
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(item) for item in error.errors())) from None


def _check_environment() -> None:
    """Refuse what would be ignored in silence."""
    if os.environ.get("MLP_API_KEY") == "":
        raise ConfigError(
            "api_key: must have at least 8 characters, MLP_API_KEY is empty; unset it for no key"
        )
    for name in os.environ:
        if name.startswith("MLP_") and name[4:].lower() not in Settings.model_fields:
            raise ConfigError(f"{name}: must be a setting, is none; see tilemlp serve --help")


def _sentence(item: object) -> str:
    assert isinstance(item, dict)
    location, message = item["loc"], item["msg"].removeprefix("Value error, ")
    if not location:
        return str(message)
    value = "***" if location[0] == "api_key" else repr(item["input"])
    return f"{location[0]}: {message[0].lower()}{message[1:]}, is {value}"


def parse_devices(text: str) -> tuple[int, ...]:
    """GPU indices of the setting `devices`, in its order.

    Raises:
        ConfigError: the text is not of that form, or one stands there twice.
    """
    if not re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", text):
        raise ConfigError(f"devices: must be numbers of GPUs such as 0,1, is {text!r}")
    devices = tuple(map(int, text.split(",")))
    if len(set(devices)) < len(devices):
        raise ConfigError(f"devices: must name each GPU once, is {text!r}")
    return devices


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer indices of a text such as `0-23` or `0,4,8-11`, ascending and without repeats.

    Raises:
        ConfigError: the text is not of that form.
    """
    layers: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", part.strip()):
            raise ConfigError(
                f"layers: must be like 0-23 or 0,4,8-11 with numbers below 10000, is {text[:80]!r}"
            )
        first, _, last = part.strip().partition("-")
        start, end = int(first), int(last or first)
        if end < start:
            raise ConfigError(f"layers: a range must ascend, is {part!r}")
        layers.update(range(start, end + 1))
    return tuple(sorted(layers))
