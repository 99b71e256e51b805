"""Clients that keep tensors in shared memory, by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import numpy as np

from tests.routes.bodies import V2_DATATYPES
from tests.shared_objects import SharedObject

if TYPE_CHECKING:  # which imports this
    from tests.routes.conftest import Service

INFER = "/v2/models/tiny/infer"
SYSTEM = "/v2/systemsharedmemory"
SIZE = 1 << 16


def register(service: Service, name: str, made: SharedObject, offset: int = 0) -> None:
    body = {"key": made.key, "offset": offset, "byte_size": SIZE - offset}
    answer = service.client.post(f"{SYSTEM}/region/{name}/register", json=body)
    assert answer.status_code == 200, answer.text


def place(nbytes: int, offset: int = 0, region: str = "r") -> dict[str, object]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def infer(
    service: Service,
    x: np.ndarray,
    source: dict[str, object],
    target: dict[str, object],
    output: str = "mlp",
) -> httpx.Response:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": V2_DATATYPES[x.dtype.name]}
    document = {
        "inputs": [{**tensor, "parameters": source}],
        "outputs": [{"name": output, "parameters": target}],
    }
    return service.client.post(INFER, content=json.dumps(document))


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]
