"""Request bodies and readers of answers, one per wire format, for FP32 and FP16 rows."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import numpy as np

from service.http_small import SMALL_BYTES
from tests.engines import HIDDEN

RAW = "application/octet-stream"
NPY = "application/x-npy"
JSON = "application/json"
DTYPE_NAMES = {"float32": "fp32", "float16": "fp16"}
# FP32 rows of the largest body that is small to the server, and of one that is not.
SMALL = SMALL_BYTES // (4 * HIDDEN)
LARGE = SMALL + 1000
V2_DATATYPES = {"float32": "FP32", "float16": "FP16"}


def rows(tokens: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """[tokens, HIDDEN] small whole numbers, which every format carries exactly."""
    generator = np.random.default_rng(seed)
    return generator.integers(-100, 100, (tokens, HIDDEN)).astype(dtype)


def encode(x: np.ndarray, media_type: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request to /mlp."""
    headers = {"content-type": media_type}
    if media_type == RAW:
        return x.tobytes(), {
            **headers,
            "x-tensor-dtype": DTYPE_NAMES[x.dtype.name],
            "x-tensor-shape": ",".join(map(str, x.shape)),
        }
    if media_type == NPY:
        file = io.BytesIO()
        np.save(file, x)
        return file.getvalue(), headers
    return json.dumps({"inputs": x.tolist()}).encode(), headers


def decode(answer: httpx.Response) -> np.ndarray:
    """The tensor of an answer of /mlp; fails unless it was a good one that agrees with itself."""
    assert answer.status_code == 200, answer.text
    shape = tuple(map(int, answer.headers["x-tensor-shape"].split(",")))
    dtype = {"fp32": "<f4", "fp16": "<f2"}[answer.headers["x-tensor-dtype"]]
    media_type = answer.headers["content-type"]
    if media_type == RAW:
        return np.frombuffer(answer.content, dtype).reshape(shape)
    if media_type == NPY:
        loaded = np.load(io.BytesIO(answer.content))
        assert loaded.shape == shape
        assert loaded.dtype == dtype
        return loaded
    assert media_type == JSON
    document = answer.json()
    assert tuple(document["shape"]) == shape
    assert document["dtype"] == answer.headers["x-tensor-dtype"]
    return np.array(document["outputs"], "float32").reshape(shape)


def post(
    client: httpx.Client,
    x: np.ndarray,
    media_type: str = RAW,
    query: str = "",
    **headers: str,
) -> httpx.Response:
    """POST rows to /mlp; underscores in header names stand for hyphens."""
    body, own = encode(x, media_type)
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/mlp{query}", content=body, headers=own)


def v2_body(
    x: np.ndarray,
    *,
    binary: bool = True,
    output: str = "mlp",
    binary_output: bool = True,
    parameters: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a v2 infer request; `fields` replace those of the input."""
    tensor: dict[str, Any] = {
        "name": "x",
        "shape": list(x.shape),
        "datatype": V2_DATATYPES[x.dtype.name],
    }
    data = x.tobytes() if binary else b""
    if binary:
        tensor["parameters"] = {"binary_data_size": len(data)}
    else:
        tensor["data"] = x.tolist()
    document = {
        "inputs": [{**tensor, **fields}],
        "outputs": [{"name": output, "parameters": {"binary_data": binary_output}}],
        "parameters": parameters or {},
    }
    text = json.dumps(document).encode()
    return text + data, {"inference-header-content-length": str(len(text))} if binary else {}


def v2_decode(answer: httpx.Response) -> np.ndarray:
    """The tensor of a v2 answer; fails unless it was a good one."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("inference-header-content-length")
    text = answer.content if length is None else answer.content[: int(length)]
    (output,) = json.loads(text)["outputs"]
    dtype = {"FP32": "<f4", "FP16": "<f2"}[output["datatype"]]
    if length is None:
        return np.array(output["data"], dtype).reshape(output["shape"])
    data = answer.content[int(length) :]
    assert len(data) == output["parameters"]["binary_data_size"]
    return np.frombuffer(data, dtype).reshape(output["shape"])
