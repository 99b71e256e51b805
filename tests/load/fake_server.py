"""A service that answers correctly by default and misbehaves on request."""

import asyncio
import json
import threading
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import numpy as np

from service.engine.base import DType
from service.load.payloads import decode, encode

HIDDEN = 16
WIDTHS = {"mlp": 16, "gated": 40}
WEIGHTS = {
    name: np.random.default_rng(1).standard_normal((HIDDEN, width)).astype(np.float32)
    for name, width in WIDTHS.items()
}


@dataclass
class Request:
    method: str
    target: str
    headers: dict
    body: bytes
    peer: tuple

    @property
    def output(self):
        return "gated" if "output=gated" in self.target else "mlp"

    @property
    def dtype(self):
        return DType(self.headers["x-tensor-dtype"])

    @property
    def rows(self):
        return len(self.body) // (HIDDEN * self.dtype.itemsize)


@dataclass
class Reply:
    """What to send.

    `cut` closes the connection after that many bytes of the whole; `late` are bytes that follow a
    little later, unasked.
    """

    body: bytes = b""
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay_s: float = 0.0
    cut: int | None = None
    close: bool = False
    late: bytes = b""

    def raw(self):
        lines = [f"HTTP/1.1 {self.status} Whatever"]
        headers = {"Content-Length": len(self.body), **self.headers}
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + self.body


def right_reply(request):
    """The right answer, with everything that the real service says beside it."""
    x = decode(request.body, request.dtype).reshape(-1, HIDDEN)
    y = x @ WEIGHTS[request.output]
    headers = {
        "X-Tensor-Shape": f"{y.shape[0]},{y.shape[1]}",
        "X-Tensor-Dtype": request.dtype.value,
        "X-MLP-Kernel": "fake",
        "X-MLP-Batch-Tokens": 7,
        "Server-Timing": "queue;dur=0.5, execute;dur=2.25",
    }
    return Reply(encode(y, request.dtype), headers=headers)


def error_reply(status, code, **headers):
    body = json.dumps({"error": f"it is {code}", "code": code}).encode()
    return Reply(body, status, headers)


def with_values(reply, request, change):
    """A reply whose tensor went through `change`, shape headers as before."""
    width = WIDTHS[request.output]
    values = decode(reply.body, request.dtype).reshape(-1, width).copy()
    return replace(reply, body=encode(change(values), request.dtype))


class FakeServer:
    """Runs on a thread of its own. A context manager.

    Args:
        twist: Called with the number of the request to /mlp, from 0 and after the first `spare`,
            with the request and with the right reply; returns the reply to send.
        spare: Requests to /mlp that are answered rightly: those that the load test begins with.
        models: Names of models.
        documents: Bodies to answer with, by path, instead of the usual ones.
    """

    def __init__(self, twist=None, spare=8, models=("tiny",), documents=None):
        self.twist = twist
        self.spare = spare
        self.models = list(models)
        self.documents = documents or {}
        self.requests = []
        self.connections = 0
        self._count = 0
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(5)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *exc):
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def mlp_requests(self):
        return [request for request in self.requests if request.target.startswith("/mlp")]

    def disappear(self):
        """Refuse new connections and cut the present ones; to be called by a twist."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _start(self, port=0):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return self._server.sockets[0].getsockname()[1]

    async def _stop(self):
        await asyncio.sleep(0.02)  # what was accepted reaches _serve, or it would never be closed
        self._server.close()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)  # what was aborted is closed

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()  # after what is written; _stop does not wait for that

    async def _serve_one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, target, headers, body, writer.get_extra_info("peername"))
        self.requests.append(request)
        reply = self._reply(request)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        writer.write(reply.raw()[: reply.cut])
        await writer.drain()
        if reply.late:
            await asyncio.sleep(0.02)
            writer.write(reply.late)
        return reply.cut is None and not reply.close

    def _reply(self, request):
        if request.target.startswith("/mlp"):
            number, self._count = self._count, self._count + 1
            reply = right_reply(request)
            if self.twist is not None and number >= self.spare:
                reply = self.twist(number - self.spare, request, reply)
            return reply
        if request.target in self.documents:
            return Reply(self.documents[request.target])
        if request.target == "/v2":
            return Reply(b'{"name": "fake", "version": "1.2"}')
        if request.target == "/v2/repository/index":
            return Reply(json.dumps([{"name": name} for name in self.models]).encode())
        name = unquote(request.target.removeprefix("/v2/models/"))
        if name not in self.models:
            return error_reply(404, "not_found")
        return Reply(json.dumps(make_metadata(name)).encode())


def make_metadata(name):
    tensor = {"name": "x", "datatype": "BF16", "shape": [-1, HIDDEN]}
    outputs = [
        {"name": output, "datatype": "BF16", "shape": [-1, width]}
        for output, width in WIDTHS.items()
    ]
    return {"name": name, "versions": ["1"], "inputs": [tensor], "outputs": outputs}
