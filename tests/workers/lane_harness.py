"""A lane on the running loop, clients on real connections, and an engine that ends on demand."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np

from service.config import Settings
from service.counts import FrontCounts
from service.engine.base import DType, Output
from service.errors import ServiceError, outcomes
from service.front import InProgress
from service.routes.small import Meaning
from service.workers.free_rooms import FreeRooms
from service.workers.lane import Lane
from service.workers.records import Kind, Record, unpack_form
from service.workers.rooms import HALF_BYTES, ROOM_BYTES
from tests.e2e.raw_http import RawAnswer, head
from tests.engines import HIDDEN, expected

_PATIENCE_S = 5.0
_ROW_BYTES = 4 * HIDDEN
_STAGES = ("receive", "decode", "encode")


class Client:
    """The far end of a connection.

    Attributes:
        descriptor: Of the near end, which the lane gets.
    """

    def __init__(self, connection: socket.socket, descriptor: int) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.descriptor = descriptor
        self._pending = b""

    async def send(self, data: bytes) -> None:
        sending = asyncio.get_running_loop().sock_sendall(self.socket, data)
        await asyncio.wait_for(sending, _PATIENCE_S)

    async def read(self) -> RawAnswer:
        """The next answer."""
        while b"\r\n\r\n" not in self._pending:
            await self._fill()
        lines, _, self._pending = self._pending.partition(b"\r\n\r\n")
        status_line, *rest = lines.decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in rest]
        headers = dict(pairs)
        assert len(headers) == len(pairs)
        length = int(headers["content-length"])
        while len(self._pending) < length:
            await self._fill()
        body, self._pending = self._pending[:length], self._pending[length:]
        return RawAnswer(int(status_line.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        """Waits for the end, behind nothing more."""
        assert not self._pending
        try:
            return not await self._receive()
        except ConnectionResetError:
            return True

    def leave(self) -> None:
        self.socket.close()

    async def _fill(self) -> None:
        data = await self._receive()
        assert data, f"closed after {self._pending[:200]!r}"
        self._pending += data

    async def _receive(self) -> bytes:
        receiving = asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        return await asyncio.wait_for(receiving, _PATIENCE_S)


class Harness:
    """What a front end is to its lane.

    Args:
        library: liblane.so.
        rooms: That the front end has.

    Attributes:
        said: All that the engine's process was told.
        bundles: Those of it that are bundles and not answered yet, the oldest first.
        given_back: What was read of connections, by their descriptors.
    """

    def __init__(self, library: ctypes.PyDLL, *, rooms: int = 2, **settings: object) -> None:
        self.settings = Settings(workers=1, **settings)  # type: ignore[arg-type]
        self.memory = memoryview(bytearray(rooms * ROOM_BYTES))
        self.counts = FrontCounts(outcomes())
        self.free = FreeRooms(self.counts)
        self.in_progress = InProgress()
        self.said: list[Record] = []
        self.bundles: deque[Record] = deque()
        self.given_back: dict[int, bytes] = {}
        self._clients: list[Client] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._library = library
        self.lane = Lane(
            library,
            self.memory,
            self.settings,
            free=self.free,
            counts=self.counts,
            in_progress=self.in_progress,
            find_meaning=meaning,
            numbers=itertools.count(1).__next__,
            say=self._say,
            give_back=self._give_back,
            default_headers=lambda: [(b"date", b"today")],
            clock=time.monotonic,
        )
        self._rooms = rooms
        for index in range(rooms):
            self.free.add(index * ROOM_BYTES)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.descriptor)
        for client in self._clients:
            client.leave()
        for descriptor in self.given_back:
            os.close(descriptor)
        self._listener.close()

    @property
    def descriptor(self) -> int:
        """The lane's, which is readable while it has something to do."""
        return int(self._library.lane_descriptor(self.lane._handle))

    def watched(self) -> int:
        """Connections of which the kernel tells the lane."""
        return Path(f"/proc/self/fdinfo/{self.descriptor}").read_text().count("tfd:")

    def connect(self, *, buffers: int | None = None) -> Client:
        """A client whose connection is in the lane; `buffers`: bytes that its kernel keeps."""
        near = socket.socket()
        if buffers is not None:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        near.connect(self._listener.getsockname())
        far, _ = self._listener.accept()
        far.setblocking(False)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffers is not None:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
        client = Client(near, far.detach())
        self._clients.append(client)
        assert self.lane.adopt(client.descriptor)
        return client

    def know(self, first: bytes) -> None:
        """As if two requests with this head had been served."""
        target, fields = parse(first)
        if not self.lane.wants(first, target, fields):
            assert self.lane.wants(first, target, fields)

    def request(self, x: np.ndarray, query: str = "", **headers: object) -> bytes:
        """A request whose head is known."""
        first = request_head(len(x), query, **headers)
        self.know(first)
        return first + x.tobytes()

    async def ask(self, x: np.ndarray, query: str = "", **headers: object) -> Client:
        """A new client that asks; returns once the lane has its request."""
        client = self.connect()
        await self.send(client, self.request(x, query, **headers))
        return client

    async def send(self, client: Client, request: bytes) -> None:
        """Send a request, and wait until the lane has it."""
        before = self.in_progress.count
        await client.send(request)
        await until(lambda: self.in_progress.count > before)

    async def busy(self) -> list[Client]:
        """Clients whose bundles fill all rooms."""
        return [await self.ask(numbered(1, 9000 + index)) for index in range(self._rooms)]

    def finish(self, *, tokens: int | None = None) -> None:
        """The engine answers its oldest bundle."""
        record = self.bundles.popleft()
        output, dtype, _ = unpack_form(record.flag)
        assert dtype is DType.FP32
        rows = self.memory[record.offset : record.offset + record.nbytes]
        x = np.frombuffer(rows, np.float32).reshape(record.tokens, HIDDEN)
        data = expected(x, record.layer, output).tobytes()
        start = record.offset + HALF_BYTES
        self.memory[start : start + len(data)] = data
        batch = record.tokens if tokens is None else tokens
        answer = Record(
            Kind.DONE, 0, 0, record.request, record.offset, len(data), batch, 0, 0.001, 0.002
        )
        assert self.lane.done(answer._replace(text=b"kernel"))

    def fail(self, error: ServiceError) -> None:
        """The engine fails on its oldest bundle."""
        assert self.lane.failed(self.bundles.popleft().request, error)

    def finish_all(self) -> None:
        while self.bundles:
            self.finish()

    async def comes_back(self, client: Client) -> bytes:
        """What was read of a connection that the lane gives back."""
        await until(lambda: client.descriptor in self.given_back)
        return self.given_back[client.descriptor]

    @property
    def held(self) -> tuple[int, ...]:
        """All that anybody holds or counts as waiting."""
        lane = self.lane
        taken = self._rooms - len(self.free._free)
        return (*lane.gathered, *self.counts.gathered, self.in_progress.count, taken)

    nothing = (0,) * 8

    def counted(self, outcome: str) -> int:
        """Requests that ended so."""
        return int(self.counts.requests("mlp", outcome))

    def observed(self) -> list[int]:
        """How often each stage and the whole was measured."""
        histograms = [*(self.counts.stages[stage] for stage in _STAGES)]
        return [one.count for one in (*histograms, self.counts.durations["mlp"])]

    def cancels(self) -> list[int]:
        """Bundles that were said to be unwanted."""
        return [record.request for record in self.said if record.kind == Kind.CANCEL]

    def _say(self, record: Record) -> None:
        self.said.append(record)
        if record.kind == Kind.BUNDLE:
            self.bundles.append(record)

    def _give_back(self, descriptor: int, read: bytes) -> None:
        assert descriptor not in self.given_back
        self.given_back[descriptor] = read


async def until(condition: Callable[[], object]) -> None:
    """Until the condition holds; fails when it never does."""
    ends_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, "not true in time"
        await asyncio.sleep(0.0005)


def numbered(count: int, first: int) -> np.ndarray:
    """Rows that hold their own number."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], HIDDEN, axis=1)


def request_head(tokens: int, query: str = "", **headers: object) -> bytes:
    """Of a request with so many rows, which nobody knows yet."""
    return head(f"/mlp{query}", length=tokens * _ROW_BYTES, **headers)


def parse(first: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Target and headers of a head."""
    line, *lines = first.rstrip().split(b"\r\n")
    pairs = [one.split(b": ", 1) for one in lines]
    return line.split()[1], {name.lower(): value for name, value in pairs}


def meaning(target: bytes, headers: dict[bytes, bytes]) -> Meaning | None:
    """That of layer and output in the query; None for those of whom a header says so."""
    if b"x-unusual" in headers:
        return None
    query = parse_qs(target.partition(b"?")[2].decode())
    output = Output(query.get("output", ["mlp"])[0])
    nbytes = int(headers[b"content-length"])
    return Meaning(
        layer=int(query.get("layer", ["0"])[0]),
        output=output,
        tokens=nbytes // _ROW_BYTES,
        dtype=DType.FP32,
        output_dtype=DType.FP32,
        body_bytes=nbytes,
        answer_bytes=nbytes * (1 if output is Output.MLP else 2),
        headers=[(b"content-type", b"rows"), (b"x-rows", b"%d" % (nbytes // _ROW_BYTES))],
        request_id=headers.get(b"x-request-id", b""),
    )
