"""OpenAPI descriptions of the tensor routes, whose bodies FastAPI never sees."""

from __future__ import annotations

from typing import Any

from service.engine.base import DType, ModelSpec
from service.wire.media import Format

_DTYPES = [dtype.value for dtype in DType]
_ERRORS = {
    "400": "Malformed body, header, parameter or shape",
    "401": "API key missing or wrong",
    "404": "Unknown model or layer",
    "406": "Accept names no format that can be answered",
    "408": "The body did not arrive in time",
    "413": "Body, JSON or rows over a limit",
    "415": "Content type or encoding that is not read",
    "429": "Queue full; decided before the body is read where its size is declared",
    "500": "The engine failed",
    "503": "Starting, draining or dead",
    "504": "Deadline passed in the queue",
}


def tensor_paths(model: ModelSpec) -> dict[str, Any]:
    """The `paths` entries of /mlp and of v2 inference, for the served model."""
    infer = _infer(model)
    return {
        "/mlp": {"post": _mlp(model)},
        "/v2/models/{model}/infer": {"post": infer},
        "/v2/models/{model}/versions/{version}/infer": {
            "post": {
                **infer,
                "operationId": "infer_version",
                "parameters": [*infer["parameters"], _parameter("version", "path", "Always 1")],
            }
        },
    }


def _mlp(model: ModelSpec) -> dict[str, Any]:
    width = model.hidden_size
    raw = f"Little-endian rows of {width} elements of X-Tensor-Dtype, nothing else."
    return {
        "tags": ["MLP"],
        "operationId": "mlp",
        "summary": "Run activations through one MLP",
        "description": f"Activations [..., {width}] in, [..., {width}] (output=mlp) or "
        f"[..., {model.intermediate_size}] (output=gated) out, in the request's format and dtype "
        "unless Accept says otherwise.",
        "parameters": [
            _parameter("model", "query", "Name of the served model", default=model.name),
            _parameter("layer", "query", "Layer; needed when several are resident", "integer"),
            _parameter("output", "query", "What to compute", enum=["mlp", "gated"], default="mlp"),
            _parameter("X-Tensor-Dtype", "header", "Of raw bodies", enum=_DTYPES, default="bf16"),
            _parameter("X-Tensor-Shape", "header", "Checked against the length, such as 3,896"),
            _parameter("X-Request-Timeout-Ms", "header", "Longest wait in the queue", "integer"),
            _parameter("X-Request-Id", "header", "Returned as it came"),
            _parameter("Accept", "header", "Format of the answer, with ;dtype= if need be"),
        ],
        "requestBody": {"required": True, "content": _contents(raw, "inputs")},
        "responses": {
            "200": {
                "description": "The answer",
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}}
                    for name, text in (
                        ("X-Tensor-Shape", "Shape of the answer"),
                        ("X-Tensor-Dtype", "Element type of the answer"),
                        ("X-Request-Id", "The request's, or one made up"),
                        ("X-MLP-Kernel", "Kernel that ran"),
                        ("X-MLP-Batch-Tokens", "Rows of the batch it ran in"),
                        ("Server-Timing", "Milliseconds in the queue and in execution"),
                    )
                },
                "content": _contents(
                    "Rows of X-Tensor-Dtype, shaped as X-Tensor-Shape.", "outputs"
                ),
            },
            **_errors(),
        },
    }


def _infer(model: ModelSpec) -> dict[str, Any]:
    body = {
        Format.RAW.value: {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "JSON header of Inference-Header-Content-Length bytes, then the "
                "tensor's bytes (binary tensor data extension).",
            }
        },
        Format.JSON.value: {"schema": {"type": "object", "description": "FP32 data as JSON."}},
    }
    return {
        "tags": ["Open Inference Protocol v2"],
        "operationId": "infer",
        "summary": "Inference by the Open Inference Protocol v2",
        "description": f"Input x [..., {model.hidden_size}] of BF16, FP16 or FP32; output mlp or "
        "gated; request parameters layer and timeout (µs).",
        "parameters": [
            _parameter("model", "path", "Name of the served model"),
            _parameter("Inference-Header-Content-Length", "header", "Bytes of JSON", "integer"),
        ],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer", "content": body}, **_errors()},
    }


def _contents(raw: str, key: str) -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    return {
        Format.RAW.value: {"schema": {"type": "string", "format": "binary", "description": raw}},
        Format.NPY.value: {
            "schema": {"type": "string", "format": "binary", "description": "A numpy .npy file."}
        },
        Format.JSON.value: {
            "schema": {
                "type": "object",
                "required": [key],
                "properties": {key: rows},
                "description": "FP32; NaN, Infinity and -Infinity as bare tokens.",
            }
        },
    }


def _parameter(
    name: str, place: str, description: str, kind: str = "string", **schema: object
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": {"type": kind, **schema},
    }


def _errors() -> dict[str, Any]:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "required": ["error", "code"],
        "properties": {"error": text, "code": text},
    }
    return {
        status: {"description": description, "content": {"application/json": {"schema": schema}}}
        for status, description in _ERRORS.items()
    }
