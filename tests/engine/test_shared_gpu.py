"""Memory that a client shares, pinned for the GPU: right answers, and no harm from truncation.

pytest -m gpu tests/engine/test_shared_gpu.py
"""

from __future__ import annotations

import gc
import json
import mmap
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from service.engine.base import Batch, DType, Output, Segment
from service.engine.fused import FusedEngine
from tests.engine.batches import answers, make_batch, to_bytes
from tests.engine.handle_steps import allocate
from tests.engine.test_fused_gpu import HIDDEN, INTERMEDIATE, make_engine, pytestmark  # noqa: F401
from tests.servers import ServerProcess, ServerThread
from tests.shared_objects import shared_object

TOKENS = 2048
IN_BYTES, OUT_BYTES = TOKENS * HIDDEN * 2, TOKENS * INTERMEDIATE * 2
PRESET_HIDDEN = 896


@pytest.fixture(scope="module")
def engine() -> FusedEngine:
    return make_engine()


def draw(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16()


def test_a_service_that_has_stopped_leaves_memory_to_be_allocated() -> None:
    """Its slots stayed page-locked once, and CUDA refused to map anything where they had been."""
    for _ in range(3):
        with ServerThread(make_engine(), workers=1) as thread:
            assert thread.runtime.health.ready
        del thread
        gc.collect()
        allocate()


@pytest.mark.parametrize("start", [0, 4097])
def test_the_device_copies_from_and_to_shared_memory(engine: FusedEngine, start: int) -> None:
    """Bit for bit what it answers to a slot, from and to any address."""
    x = draw(1)
    with shared_object(start + IN_BYTES + OUT_BYTES) as made, made.path.open("r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0))[start:]
        view[:IN_BYTES] = to_bytes(x)
        assert engine.pin(view)
        try:
            output = view[IN_BYTES:]
            for memory in (view[:IN_BYTES], output):
                assert memory.nbytes >= engine.direct_bytes
                assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
            segment = Segment(TOKENS, view[:IN_BYTES], DType.BF16, output, DType.BF16)
            engine.run(Batch(0, Output.GATED, [segment]))
            plain = make_batch(engine.model, [x], output=Output.GATED)
            engine.run(plain)
            assert bytes(output) == bytes(plain.segments[0].output)
            assert answers(plain)[0].isfinite().all()
        finally:
            engine.unpin(view)


def test_pinned_pages_outlive_a_truncation(engine: FusedEngine) -> None:
    """The CPU would get a SIGBUS, which would end this process; the device reads what was there."""
    x = draw(2)
    with shared_object(IN_BYTES) as made, made.path.open("r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0))
        view[:] = to_bytes(x)
        assert engine.pin(view)
        made.truncate(0)
        plain = make_batch(engine.model, [x])
        engine.run(plain)
        (segment,) = plain.segments
        memory = memoryview(bytearray(IN_BYTES))
        engine.run(Batch(0, Output.MLP, [Segment(TOKENS, view, DType.BF16, memory, DType.BF16)]))
        assert bytes(memory) == bytes(segment.output)
        # And writes there, where nobody will ever read it.
        engine.run(
            Batch(0, Output.MLP, [Segment(TOKENS, segment.input, DType.BF16, view, DType.BF16)])
        )
        engine.unpin(view)


def test_a_client_that_truncates_does_not_end_the_service(tmp_path: Path) -> None:
    nbytes = TOKENS * PRESET_HIDDEN * 2
    x = np.random.default_rng(0).integers(0x3C00, 0x4000, nbytes // 2).astype(np.uint16).tobytes()

    def place(offset: int) -> dict[str, object]:
        return {
            "shared_memory_region": "r",
            "shared_memory_byte_size": nbytes,
            "shared_memory_offset": offset,
        }

    tensor = {"name": "x", "shape": [TOKENS, PRESET_HIDDEN], "datatype": "BF16"}
    document = json.dumps(
        {
            "inputs": [{**tensor, "parameters": place(0)}],
            "outputs": [{"name": "mlp", "parameters": place(nbytes)}],
        }
    )
    with (
        ServerProcess(tmp_path / "log", backend="fused", client_shared_memory=1) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
        shared_object(2 * nbytes) as made,
    ):
        region = "/v2/systemsharedmemory/region/r"
        body = {"key": made.key, "byte_size": 2 * nbytes}

        def infer() -> int:
            return client.post("/v2/models/qwen2.5-0.5b/infer", content=document).status_code

        stop = threading.Event()

        def flicker() -> None:
            while not stop.is_set():
                made.truncate(0)
                made.truncate(2 * nbytes)

        assert client.post(f"{region}/register", json=body).status_code == 200
        thread = threading.Thread(target=flicker)
        thread.start()
        statuses = {infer() for _ in range(200)}
        stop.set()
        thread.join()
        assert statuses <= {200, 400}
        assert client.post(f"{region}/unregister").status_code == 200
        made.write(0, x)
        assert client.post(f"{region}/register", json=body).status_code == 200
        assert infer() == 200
        headers = {"Content-Type": "application/octet-stream"}
        sent = client.post("/mlp", content=x, headers=headers)
        assert made.read(nbytes, nbytes) == sent.content
        assert server.terminate() == 0
