"""What the default preset answers, computed in FP64 by numpy from the weights alone."""

from __future__ import annotations

import functools
import http.client
from urllib.parse import urlsplit

import numpy as np
import torch

from service.engine.weights import load_model

HIDDEN_SIZE = 896


@functools.cache
def _weights() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    layer = load_model("qwen2.5-0.5b", device=torch.device("cpu")).layers[0]
    gate, up = layer.gate_up.double().numpy().reshape(2, -1, HIDDEN_SIZE)
    return gate, up, layer.down.double().numpy()


def activations(tokens: int, seed: int) -> np.ndarray:
    """[tokens, hidden_size] FP32, normal."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal((tokens, HIDDEN_SIZE), dtype=np.float32)


def mlp(x: np.ndarray) -> np.ndarray:
    """SwiGLU MLP of layer 0, [tokens, hidden_size] FP64."""
    gate_proj, up_proj, down_proj = _weights()
    gate = x.astype(np.float64) @ gate_proj.T
    gated = gate / (1 + np.exp(-gate)) * (x.astype(np.float64) @ up_proj.T)
    return gated @ down_proj.T


def assert_answers(answer: np.ndarray, x: np.ndarray) -> None:
    """An FP32 answer lies within 1e-5 of the row's largest value of FP64's."""
    expected = mlp(x)
    assert answer.shape == expected.shape
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert np.abs(answer - expected).max(initial=0) > 0 or not answer.size
    assert (np.abs(answer - expected) / scale).max() < 1e-5


def post(url: str, x: np.ndarray, timeout_s: float = 60) -> tuple[int, bytes]:
    """POST FP32 rows to /mlp on a connection of their own: status and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    connection.connect()
    try:
        headers = {"Content-Type": "application/octet-stream", "X-Tensor-Dtype": "fp32"}
        connection.request("POST", "/mlp", x.tobytes(), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def tensor(body: bytes) -> np.ndarray:
    """The FP32 rows of an answer."""
    return np.frombuffer(body, "<f4").reshape(-1, HIDDEN_SIZE)
