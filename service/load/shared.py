"""Inputs and answers in one shared memory object: requests by the Open Inference Protocol."""

from __future__ import annotations

import json
import mmap
import os
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from service.engine.base import DType
from service.load.answers import Expected
from service.load.ask import ask
from service.load.client import Connection
from service.load.payloads import Payload, make_head
from service.load.plan import Plan
from service.load.reader import Answer

_DIRECTORY = "/dev/shm"
_DTYPES = {"BF16": DType.BF16, "FP16": DType.FP16, "FP32": DType.FP32}
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}
# NaN in every element type; no right answer begins or ends with it.
_NOTHING = b"\xff" * 4


class SharedTensors:
    """One object per process: every payload's input once, and a window for each answer on its way.

    Inputs are written once, before the load, like bodies that are made once. A window whose
    request failed may still be written to by the service: then its next answer is found wrong, in
    a test that has failed already.
    """

    def __init__(self, plan: Plan) -> None:
        """Make the object and put the inputs there.

        Args:
            plan: What the process is about to do.
        """
        self._options = plan.options
        self._expected: Sequence[Expected] = plan.expected
        self._name = f"tilemlp-load-{uuid.uuid4().hex}"
        self._inputs: list[int] = []
        end = 0
        for payload in plan.payloads:
            self._inputs.append(end)
            end += _pages(payload.body_bytes)
        largest = max(self._answer_bytes(payload) for payload in plan.payloads)
        self._windows = deque(end + number * _pages(largest) for number in range(plan.connections))
        self._nbytes = end + plan.connections * _pages(largest)
        self._memory = memoryview(self._create())
        for payload, offset in zip(plan.payloads, self._inputs, strict=True):
            body = payload.request[len(payload.request) - payload.body_bytes :]
            self._memory[offset : offset + len(body)] = body
        self._held: dict[Connection, int] = {}
        self._requests: dict[tuple[int, int], bytes] = {}

    async def register(self) -> None:
        """Tell the service of it.

        Raises:
            StartError: the service refuses.
        """
        body = json.dumps({"key": f"/{self._name}", "offset": 0, "byte_size": self._nbytes})
        await self._post("register", body.encode())

    def outgoing(self, connection: Connection, payload: Payload) -> bytes:
        """A request for the payload's rows, with the answer to a window of the connection's own."""
        window = self._held[connection] = self._windows.popleft()
        nbytes = self._answer_bytes(payload)
        for at in (window, window + nbytes - len(_NOTHING)):
            self._memory[at : at + len(_NOTHING)] = _NOTHING
        key = (payload.index, window)
        if key not in self._requests:
            self._requests[key] = self._request(payload, window, nbytes)
        return self._requests[key]

    def incoming(self, connection: Connection, answer: Answer) -> Answer:
        """The answer with the window for a body; empty where nothing was written to it."""
        try:
            (output,) = json.loads(bytes(answer.body))["outputs"]
            nbytes = int(output["parameters"]["shared_memory_byte_size"])
            shape = ",".join(map(str, output["shape"]))
            dtype = _DTYPES[output["datatype"]].value
        except (KeyError, TypeError, ValueError):
            return answer  # without shape and dtype in its headers it counts as wrong
        window = self._held[connection]
        body = self._memory[window : window + nbytes]
        if _NOTHING in (bytes(body[: len(_NOTHING)]), bytes(body[-len(_NOTHING) :])):
            body = body[:0]
        headers = {
            **answer.headers,
            b"x-tensor-shape": shape.encode(),
            b"x-tensor-dtype": dtype.encode(),
        }
        return Answer(answer.status, headers, body, answer.keep_alive, answer.at_ns)

    def ended(self, connection: Connection) -> None:
        """Take the window back."""
        window = self._held.pop(connection, None)
        if window is not None:
            self._windows.append(window)

    async def close(self) -> None:
        """Tell the service that it is gone, and let go of it."""
        try:
            await self._post("unregister", b"")
        finally:
            self.release()

    def release(self) -> None:
        """Unlink the object; its memory goes when nobody has it mapped."""
        os.unlink(os.path.join(_DIRECTORY, self._name))

    def _create(self) -> mmap.mmap:
        path = os.path.join(_DIRECTORY, self._name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, self._nbytes)
            return mmap.mmap(fd, self._nbytes)
        finally:
            os.close(fd)

    async def _post(self, action: str, body: bytes) -> None:
        options = self._options
        target = f"/v2/systemsharedmemory/region/{self._name}/{action}"
        lines = [f"Content-Length: {len(body)}"]
        head = make_head("POST", target, options.address, options.api_key, lines)
        await ask(options.address, head + body, options.timeout_s)

    def _answer_bytes(self, payload: Payload) -> int:
        return self._expected[payload.index].values.size * self._options.dtype.itemsize

    def _request(self, payload: Payload, window: int, nbytes: int) -> bytes:
        options = self._options
        columns = payload.body_bytes // (payload.rows * options.dtype.itemsize)
        source = self._place(payload.body_bytes, self._inputs[payload.index])
        tensor = {
            "name": "x",
            "shape": [payload.rows, columns],
            "datatype": _DATATYPES[options.dtype],
            "parameters": source,
        }
        document: dict[str, Any] = {
            "inputs": [tensor],
            "outputs": [{"name": options.output.value, "parameters": self._place(nbytes, window)}],
        }
        if options.layer is not None:
            document["parameters"] = {"layer": options.layer}
        body = json.dumps(document, separators=(",", ":")).encode()
        target = f"/v2/models/{quote(payload.model, safe='')}/infer"
        lines = [f"Content-Length: {len(body)}"]
        return make_head("POST", target, options.address, options.api_key, lines) + body

    def _place(self, nbytes: int, offset: int) -> dict[str, object]:
        return {
            "shared_memory_region": self._name,
            "shared_memory_byte_size": nbytes,
            "shared_memory_offset": offset,
        }


def _pages(nbytes: int) -> int:
    """Bytes of the pages that hold so many."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
