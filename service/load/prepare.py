"""What has to be known before the load starts: the model, the payloads and the right answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from service.errors import StartError
from service.load.answers import Expected, make_expected, validate_distinct
from service.load.ask import ask, ask_json
from service.load.options import LoadOptions
from service.load.payloads import Payload, make_head, make_payloads


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of `prepare`.

    Attributes:
        server: The service's metadata, from `/v2`.
        model: The model's metadata, from `/v2/models/{model}`.
        hidden_size: Columns of a request.
        width: Columns of an answer.
        payloads: Requests to send.
        expected: The right answer to each.
    """

    server: Mapping[str, Any]
    model: Mapping[str, Any]
    hidden_size: int
    width: int
    payloads: tuple[Payload, ...]
    expected: tuple[Expected, ...]

    @property
    def model_name(self) -> str:
        """What the model is called, whether it was asked for by name or not."""
        return cast(str, self.model["name"])


async def prepare(options: LoadOptions) -> Prepared:
    """Ask for the model, make the payloads and have each answered once, alone.

    Raises:
        StartError: the service does not answer, or not in a way that a load test can be based on.
    """
    server = await _get_object(options, "/v2")
    name = options.model if options.model is not None else await _find_only_model(options)
    model = await _get_object(options, f"/v2/models/{quote(name, safe='')}")
    hidden_size = _find_columns(model, "inputs", "x")
    width = _find_columns(model, "outputs", options.output.value)
    payloads = make_payloads(options, name, hidden_size)
    expected = []
    for payload in payloads:
        answer = await ask(options.address, payload.request, options.timeout_s)
        expected.append(make_expected(payload, width, options.dtype, answer))
    validate_distinct(expected)
    model = {**model, "name": name}
    return Prepared(server, model, hidden_size, width, payloads, tuple(expected))


async def _get_object(options: LoadOptions, target: str) -> dict[str, Any]:
    head = make_head("GET", target, options.address, options.api_key)
    value = await ask_json(options.address, head, options.timeout_s)
    if not isinstance(value, dict):
        raise StartError(f"{target}: must answer a JSON object, answers {value!r:.100}")
    return value


async def _find_only_model(options: LoadOptions) -> str:
    lines = ["Content-Type: application/json", "Content-Length: 2"]
    head = make_head("POST", "/v2/repository/index", options.address, options.api_key, lines)
    value = await ask_json(options.address, head + b"{}", options.timeout_s)
    entries = value if isinstance(value, list) else []
    names = sorted({str(e["name"]) for e in entries if isinstance(e, dict) and "name" in e})
    if len(names) != 1:
        raise StartError(f"model: must be named where there is not exactly one, there are {names}")
    return names[0]


def _find_columns(model: Mapping[str, Any], side: str, name: str) -> int:
    """Last dimension of a tensor in the model's metadata."""
    for tensor in model.get(side) or ():
        if tensor.get("name") == name:
            shape = tensor.get("shape")
            if isinstance(shape, list) and shape and isinstance(shape[-1], int) and shape[-1] > 0:
                return shape[-1]
    raise StartError(f"model metadata: must give {side} {name!r} with its columns, is {model}")
