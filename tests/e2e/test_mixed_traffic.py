"""32 clients, every format, layer and output at once: each gets its own rows, and it adds up."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import httpx
import numpy as np
import pytest

from tests.e2e.exact import BF16, HIDDEN, INTERMEDIATE, LAYERS, ExactModel
from tests.e2e.scrape import Scrape, wait_at_rest

pytestmark = pytest.mark.e2e

_CLIENTS = 32
_REQUESTS = 2000
_DTYPES = {"bf16": BF16, "fp16": np.dtype("<f2"), "fp32": np.dtype("<f4")}
_DATATYPES = {"bf16": "BF16", "fp16": "FP16", "fp32": "FP32"}
# Format and dtype; JSON has only FP32.
_FORMS = [(kind, dtype) for kind in ("raw", "npy", "v2") for dtype in _DTYPES]
_FORMS += [("json", "fp32"), ("v2-json", "fp32")]


@dataclass
class _Ask:
    """One request of the plan."""

    kind: str
    dtype: str
    layer: int
    output: str
    x: np.ndarray
    bad: bool

    @property
    def api(self) -> str:
        return "v2" if self.kind.startswith("v2") else "mlp"


def _plan() -> list[_Ask]:
    generator = np.random.default_rng(2024)
    plan = []
    for number in range(_REQUESTS):
        kind, dtype = _FORMS[number % len(_FORMS)]
        tokens = int(generator.integers(0, 60 if "json" in kind else 301))
        plan.append(
            _Ask(
                kind,
                dtype,
                int(generator.integers(LAYERS)),
                str(generator.choice(["mlp", "gated"])),
                generator.standard_normal((tokens, HIDDEN)).astype(_DTYPES[dtype]),
                bool(generator.random() < 0.05),
            )
        )
    return plan


def _send(client: httpx.Client, model: str, ask: _Ask) -> httpx.Response:
    width = HIDDEN + 1 if ask.bad else HIDDEN
    if ask.api == "mlp":
        headers = {"content-type": "application/octet-stream", "x-tensor-dtype": ask.dtype}
        body = ask.x.tobytes()
        if ask.kind == "raw":
            headers["x-tensor-shape"] = f"{len(ask.x)},{width}"
        elif ask.kind == "npy":
            headers["content-type"] = "application/x-npy"
            file = io.BytesIO()
            np.save(file, np.zeros((2, width), "float32") if ask.bad else ask.x)
            headers["x-tensor-dtype"] = "fp32" if ask.bad else ask.dtype
            body = file.getvalue()
        else:
            headers["content-type"] = "application/json"
            nested = [[1.0] * width] if ask.bad else ask.x.tolist()
            body = json.dumps({"inputs": nested}).encode()
        query = {"layer": ask.layer, "output": ask.output}
        return client.post("/mlp", params=query, content=body, headers=headers)
    tensor = {
        "name": "x",
        "shape": [len(ask.x), width],
        "datatype": _DATATYPES[ask.dtype],
    }
    binary = ask.kind == "v2"
    data = ask.x.tobytes() if binary else b""
    if binary:
        tensor["parameters"] = {"binary_data_size": len(data)}
    else:
        tensor["data"] = ask.x.ravel().tolist()
    text = json.dumps(
        {
            "inputs": [tensor],
            "outputs": [{"name": ask.output, "parameters": {"binary_data": binary}}],
            "parameters": {"layer": ask.layer},
        }
    ).encode()
    headers = {"inference-header-content-length": str(len(text))} if binary else {}
    return client.post(f"/v2/models/{model}/infer", content=text + data, headers=headers)


def _read(answer: httpx.Response, ask: _Ask) -> np.ndarray:
    dtype = _DTYPES[ask.dtype]
    shape = (len(ask.x), HIDDEN if ask.output == "mlp" else INTERMEDIATE)
    if ask.api == "mlp":
        assert answer.headers["x-tensor-dtype"] == ask.dtype
        assert answer.headers["x-tensor-shape"] == ",".join(map(str, shape))
    if ask.kind == "raw":
        return np.frombuffer(answer.content, dtype).reshape(shape)
    if ask.kind == "npy":
        loaded = np.load(io.BytesIO(answer.content))
        # numpy knows bfloat16 only as two opaque bytes.
        return loaded.view(BF16) if ask.dtype == "bf16" else loaded
    if ask.kind == "json":
        return np.array(answer.json()["outputs"], dtype).reshape(shape)
    length = answer.headers.get("inference-header-content-length")
    text = answer.content if length is None else answer.content[: int(length)]
    (output,) = json.loads(text)["outputs"]
    assert (output["name"], output["shape"]) == (ask.output, list(shape))
    if length is None:
        return np.array(output["data"], dtype).reshape(shape)
    return np.frombuffer(answer.content[int(length) :], dtype).reshape(shape)


def _run_client(url: str, model: str, plan: list[_Ask]) -> list[httpx.Response]:
    with httpx.Client(base_url=url, timeout=60) as client:
        return [_send(client, model, ask) for ask in plan]


def _assert_answered(ask: _Ask, answer: httpx.Response, model: ExactModel) -> None:
    if ask.bad:
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "invalid"
        return
    assert answer.status_code == 200, (ask.kind, ask.dtype, answer.text[:300])
    model.assert_right(_read(answer, ask), ask.x, ask.layer, ask.output)
    assert int(answer.headers["x-mlp-batch-tokens"]) >= len(ask.x)


def test_every_client_gets_its_own_rows_and_the_metrics_add_up(server, model):
    """2, 4, 28 and 32 with a real engine: right rows, bounded batches, exact sums."""
    plan = _plan()
    stop = threading.Event()
    scrapes = [Scrape(server.url)]

    def scrape() -> None:
        while not stop.wait(0.1):
            scrapes.append(Scrape(server.url))

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        with ThreadPoolExecutor(_CLIENTS) as pool:
            parts = [plan[start::_CLIENTS] for start in range(_CLIENTS)]
            runs = [pool.submit(_run_client, server.url, model.name, part) for part in parts]
            answers = [run.result() for run in runs]
    finally:
        stop.set()
        scraper.join()
    wait_at_rest(server.url)
    scrapes.append(Scrape(server.url))
    # Only now: the judge's arithmetic in 32 threads would take longer than all the traffic.
    for part, found in zip(parts, answers, strict=True):
        for ask, answer in zip(part, found, strict=True):
            _assert_answered(ask, answer, model)
    _assert_adds_up(plan, scrapes[0], scrapes[-1])
    for earlier, later in pairwise(scrapes):
        for (name, labels), value in earlier.samples.items():
            if name.endswith(("_total", "_count", "_bucket")):
                assert later.samples[name, labels] >= value, name


def _assert_adds_up(plan: list[_Ask], before: Scrape, after: Scrape) -> None:
    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    good = [ask for ask in plan if not ask.bad]
    computed = [ask for ask in good if len(ask.x)]
    for api in ("mlp", "v2"):
        expected = Counter("invalid" if ask.bad else "ok" for ask in plan if ask.api == api)
        found = Counter(after.outcomes(api)) - Counter(before.outcomes(api))
        assert found == expected
        assert grown("mlp_request_duration_seconds_count", api=api) == expected["ok"]
    tokens = sum(len(ask.x) for ask in computed)
    flops = sum(
        (6 if ask.output == "mlp" else 4) * len(ask.x) * HIDDEN * INTERMEDIATE for ask in computed
    )
    assert grown("mlp_tokens_total") == tokens
    assert grown("mlp_flops_total") == flops
    assert grown("mlp_batch_tokens_sum") == tokens
    assert grown("mlp_batch_requests_sum") == len(computed)
    assert grown("mlp_stage_duration_seconds_count", stage="queue") == len(computed)
    batches = grown("mlp_batch_requests_count")
    assert grown("mlp_kernel_launches_total", kernel="reference") == batches
    assert batches < 0.9 * len(computed), "hardly anything was batched"
    assert max(after.buckets("mlp_batch_tokens")) <= 8192
    for name in ("mlp_ready", "mlp_engine_healthy"):
        assert after(name) == 1
