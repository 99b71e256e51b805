"""What a load test is: where to, what, how hard and how long. Validated before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from urllib.parse import urlsplit

from service.engine.base import DType, Output
from service.errors import ConfigError

RowMix: TypeAlias = tuple[tuple[int, float], ...]

_MAX_ROWS = 1 << 20
_MAX_CONNECTIONS = 1 << 14
_MAX_PROCESSES = 256


class Transport(Enum):
    """How tensors get to the service and back."""

    HTTP = "http"
    """In bodies of requests and answers to `/mlp`."""
    SHM = "shm"
    """In shared memory of the service's own host; requests are the Open Inference Protocol's."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go.

    Attributes:
        host: Name or address to connect to.
        port: TCP port.
        authority: `host:port` for the Host header, IPv6 in brackets.
        prefix: Path before `/mlp`, for a service behind a proxy; without a slash at its end.
    """

    host: str
    port: int
    authority: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of one load test.

    Attributes:
        url: `http://host:port`, with a path prefix where the service has one.
        model: Served name; None asks the service for its only model.
        layer: Layer of the model; None leaves the choice to the service.
        output: Which tensor to ask for.
        dtype: Element type on the wire, both ways.
        transport: How tensors get to the service and back.
        rows: Tokens per request, as (tokens, weight) pairs with positive weights of any sum.
        connections: Connections in all; in the closed loop also the requests in flight.
        rate_per_s: Open loop: mean arrivals per second of a Poisson process. None is the closed
            loop: each connection sends its next request when it has the answer to the last.
        sweep: Measure a series of loads up to the given one instead of that one alone.
        duration_s: Measured time of each load.
        warm_up_s: Time under load before that. It counts for faults, not for speed.
        timeout_s: Longest time from sending to the whole answer, and to connect.
        max_backlog_requests: Open loop: arrivals that may wait for a connection, in all.
        processes: Client processes that share the connections.
        seed: Of payloads, of the mix and of arrivals.
        api_key: Sent as `Authorization: Bearer`; never shown.
        quiet: No live progress, even on a terminal.

    Raises:
        ConfigError: an option, or a combination of options, makes no sense.
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    layer: int | None = None
    output: Output = Output.MLP
    dtype: DType = DType.BF16
    transport: Transport = Transport.HTTP
    rows: RowMix = ((1, 1.0),)
    connections: int = 8
    rate_per_s: float | None = None
    sweep: bool = False
    duration_s: float = 10.0
    warm_up_s: float = 2.0
    timeout_s: float = 30.0
    max_backlog_requests: int = 10_000
    processes: int = 1
    seed: int = 0
    api_key: str | None = field(default=None, repr=False)
    quiet: bool = False

    def __post_init__(self) -> None:
        _parse_url(self.url)
        _check_rows(self.rows)
        _check(self.model != "", "model", "must not be empty", self.model)
        _check(self.layer is None or self.layer >= 0, "layer", "must be at least 0", self.layer)
        _check_range("connections", self.connections, 1, _MAX_CONNECTIONS)
        _check_range("processes", self.processes, 1, _MAX_PROCESSES)
        _check(
            self.processes <= self.connections,
            "processes",
            f"must be at most connections ({self.connections})",
            self.processes,
        )
        _check_positive("duration_s", self.duration_s)
        _check_positive("timeout_s", self.timeout_s)
        _check(
            math.isfinite(self.warm_up_s) and self.warm_up_s >= 0,
            "warm_up_s",
            "must be at least 0 and finite",
            self.warm_up_s,
        )
        if self.rate_per_s is not None:
            _check_positive("rate_per_s", self.rate_per_s)
        _check(
            self.max_backlog_requests >= 0,
            "max_backlog_requests",
            "must be at least 0",
            self.max_backlog_requests,
        )
        _check(self.seed >= 0, "seed", "must be at least 0", self.seed)
        if self.api_key is not None and not _is_token(self.api_key):
            # The value is a secret: the message names the rule alone.
            raise ConfigError("api_key: must be printable ASCII without spaces, is not")

    @property
    def address(self) -> Address:
        """`url`, taken apart."""
        return _parse_url(self.url)


def parse_rows(text: str) -> RowMix:
    """Tokens per request from a text such as `64` or `1:0.7,64:0.25,512:0.05`.

    Raises:
        ConfigError: the text is not of that form, or a number is out of range.
    """
    mix = []
    for part in text.split(","):
        rows, colon, weight = part.strip().partition(":")
        try:
            mix.append((int(rows), float(weight) if colon else 1.0))
        except ValueError:
            raise ConfigError(f"rows: must be like 64 or 1:0.7,64:0.3, is {text!r}") from None
    _check_rows(tuple(mix))
    return tuple(mix)


def _parse_url(url: str) -> Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"url: {error}, is {url!r}") from None
    _check(parts.scheme == "http", "url", "must start with http:// (TLS is not spoken)", url)
    _check(bool(host), "url", "must name a host", url)
    _check(
        not (parts.query or parts.fragment or parts.username or parts.password),
        "url",
        "must be host, port and path only",
        url,
    )
    printable = parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
    _check(printable, "url", "the path must be printable ASCII without spaces", url)
    assert host is not None
    port = 80 if port is None else port
    shown = f"[{host}]" if ":" in host else host
    return Address(host, port, f"{shown}:{port}", parts.path.rstrip("/"))


def _check_rows(rows: RowMix) -> None:
    _check(bool(rows), "rows", "must not be empty", rows)
    for count, weight in rows:
        _check_range("rows", count, 1, _MAX_ROWS)
        _check(
            math.isfinite(weight) and weight > 0,
            "rows",
            "a weight must be above 0 and finite",
            weight,
        )
    counts = [count for count, _ in rows]
    _check(len(set(counts)) == len(counts), "rows", "must name each count once", counts)


def _is_token(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _check_range(name: str, value: int, low: int, high: int) -> None:
    _check(low <= value <= high, name, f"must be between {low} and {high}", value)


def _check_positive(name: str, value: float) -> None:
    _check(math.isfinite(value) and value > 0, name, "must be above 0 and finite", value)


def _check(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name}: {rule}, is {value!r}")
