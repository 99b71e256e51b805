"""The engine's process where HTTP has processes of its own: it listens, computes and counts."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from types import FrameType

import uvicorn

from service.batching.blocks import Blocks
from service.config import Settings
from service.engine.base import Engine, PinsHostMemory
from service.errors import outcomes
from service.http_server import CLOSE_TIMEOUT_S, DEATH_DELAY_S
from service.runtime import Runtime
from service.workers.lane_library import find_library
from service.workers.memory import SharedMemory, create_memory
from service.workers.pool import Pool
from service.workers.rooms import gathering

logger = logging.getLogger(__name__)

_BACKLOG = 2048
# For front ends to end, beyond the time that they give their clients.
_END_TIMEOUT_S = 5.0


class EngineServer:
    """Engine, queue and metrics in this process, HTTP in `settings.workers` others.

    Attributes:
        runtime: The service.
        started: Connections are accepted, or wait to be.
        exit_status: 0 after a drain in which everything was answered, else 1.
    """

    def __init__(self, settings: Settings, engine: Engine, reason: str = "") -> None:
        # Blocks are powers of two, so that twice the limit holds all that is admitted.
        arena_bytes = 1 << (2 * settings.max_queue_bytes - 1).bit_length()
        descriptor = create_memory(settings.workers, arena_bytes, outcomes())
        self._memory = SharedMemory(descriptor, settings.workers, arena_bytes, outcomes())
        self._answers = Blocks(self._memory.answers, "answers")
        self._rooms = Blocks(self._memory.rooms, "rooms")
        self._settings = settings
        self.exit_status = 0
        self.started = False
        self.runtime = Runtime(
            settings,
            engine,
            on_dead=self._engine_died,
            reason=reason,
            slots=Blocks(self._memory.bodies, "bodies"),
        )
        gathered = gathering(settings)
        self.runtime.admission.set_aside(
            settings.workers * gathered.tokens, settings.workers * gathered.nbytes
        )
        for index in range(settings.workers):
            self.runtime.metrics.add_front(self._memory.counts(index))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        return self._port

    @property
    def answer_bytes(self) -> int:
        """Bytes of slots for answers that are lent."""
        return self._answers.lent_bytes

    @property
    def pool(self) -> Pool:
        """The front ends, once it has started."""
        return self._pool

    def run(self) -> None:
        """Serve until told to stop."""
        new_loop = uvicorn.Config("", loop="auto").get_loop_factory() or asyncio.new_event_loop
        loop = new_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._serve())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain first; a second one ends at once. From any thread."""
        del sig, frame
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._catch_signals()
        try:
            listeners = listen(self._settings.host, self._settings.port)
        except OSError as error:
            logger.error("cannot listen on %s: %s", self._settings.host, error)
            self.exit_status = 1
            self.runtime.stopped = True
            return
        self._port: int = listeners[0].getsockname()[1]
        await self.runtime.start()
        self._pool = Pool(
            self.runtime, self._memory, self._answers, self._rooms, self._cannot_start
        )
        self.runtime.health.on_change = self._pool.tell_health
        self.runtime.children = lambda: [one.pid for one in self._pool.front_ends.values()]
        self._pool.open(listeners)
        pinning = asyncio.ensure_future(asyncio.to_thread(self._pin_slots))
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        logger.info(
            "running on http://%s:%d with %d front ends%s",
            host,
            self._port,
            self._settings.workers,
            "" if find_library() else "; no liblane.so (`make lane`): all requests go the long way",
        )
        self.started = True
        await self._ended.wait()
        pinned = await pinning
        await self.runtime.stop()
        # A batch that hangs may use them until the process ends.
        if self.runtime.stopped:
            for part in pinned:
                await asyncio.to_thread(self._unpin, part)

    def _pin_slots(self) -> list[memoryview]:
        """Let the device read and write slots by itself; takes seconds, batches run meanwhile."""
        engine = self.runtime.engine
        if not isinstance(engine, PinsHostMemory):
            return []
        parts = (self._memory.bodies, self._memory.answers, self._memory.rooms)
        return [part for part in parts if engine.pin(part)]

    def _unpin(self, part: memoryview) -> None:
        """Or CUDA would refuse to allocate where this process maps something else later."""
        engine = self.runtime.engine
        assert isinstance(engine, PinsHostMemory)
        try:
            engine.unpin(part)
        except RuntimeError as error:
            # All is answered, and the process ends as well.
            logger.warning("%d bytes of slots could not be unpinned: %s", part.nbytes, error)

    def _catch_signals(self) -> None:
        # Tests run servers in threads, where signals cannot be caught.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(
                    number, self.handle_exit, number, None
                )

    def _stop(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._drain())
        else:
            self.exit_status = 1
            self._pool.kill()

    async def _drain(self) -> None:
        grace_ends = time.monotonic() + self._settings.shutdown_grace_s
        self.runtime.begin_drain()
        self._pool.stop()
        await asyncio.sleep(self._settings.drain_delay_s)
        self._pool.close()
        left_s = max(grace_ends - time.monotonic(), CLOSE_TIMEOUT_S)
        await self._end(left_s)

    async def _end(self, grace_s: float) -> None:
        if not await self._pool.ended(grace_s + _END_TIMEOUT_S):
            self.exit_status = 1
            # Nobody waits for what the engine may still do, nor does the process. A dead one has
            # failed them itself, and said so.
            if self.runtime.health.live:
                self.runtime.give_up(TimeoutError("drain: front ends had to give requests up"))
        self._ended.set()

    def _engine_died(self) -> None:
        self.exit_status = 1
        self._end_soon()

    def _cannot_start(self) -> None:
        logger.critical("no front end can be started, the service ends")
        self.exit_status = 1
        self._end_soon()

    def _end_soon(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end_dead())

    async def _end_dead(self) -> None:
        """The front ends end by themselves; until then they say why."""
        await asyncio.sleep(DEATH_DELAY_S)
        self._pool.close()
        self._pool.stop()
        await self._end(CLOSE_TIMEOUT_S)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host, on the same port; 0 picks a free one.

    Raises:
        OSError: one of them cannot be had.
    """
    found: list[socket.socket] = []
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, *_, address in dict.fromkeys(infos):
            port = port or (found[0].getsockname()[1] if found else 0)
            listener = socket.create_server(
                (address[0], port, *address[2:]), family=family, backlog=_BACKLOG
            )
            listener.setblocking(False)
            found.append(listener)
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found
