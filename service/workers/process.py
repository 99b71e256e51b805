"""One front end as the engine's process sees it: child, channel, desk and connections."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from service.batching.blocks import Blocks
from service.runtime import Runtime
from service.workers.channel import Channel, OnRecord, channel_pair
from service.workers.desk import Desk
from service.workers.hello import Hello
from service.workers.identity import IDENTITY
from service.workers.memory import SharedMemory
from service.workers.records import Kind, Record, pack

# From hanging up to the process's end; it needs half a second to say why on its connections.
_END_TIMEOUT_S = 3.0
# From one look whether it has ended to the next.
_LOOK_S = 0.005
# Characters of a sentence about the service's health: what an engine has to say may be pages.
_LONGEST_REASON = 1000


class FrontEndProcess:
    """A front end that has just been started.

    Args:
        hello: What it is to serve, and which one it is.
        memory: What it shares with this process.
        runtime: The service, started.
        answers: Where slots for answers come from.
        rooms: Where rooms for bundles come from.
        on_ready: Called when it can take connections, and when it no longer can.
        on_gone: Called once, when it has died or ended; all it held is back then.

    Raises:
        OSError: no process or no descriptor can be had; nothing is left behind.

    Attributes:
        index: Which one it is.
        ready: It can take connections.
        was_ready: It could at some time.
        exit_status: Once it has gone; negative for a signal.
    """

    def __init__(
        self,
        hello: Hello,
        memory: SharedMemory,
        runtime: Runtime,
        answers: Blocks,
        rooms: Blocks,
        *,
        on_ready: Callable[[FrontEndProcess], None],
        on_gone: Callable[[FrontEndProcess], None],
    ) -> None:
        self.index = hello.index
        self.ready = self.was_ready = False
        self.exit_status: int | None = None
        self._counts = memory.counts(hello.index)
        self._counts.restart()
        self._passed = 0
        self._runtime = runtime
        self._on_ready = on_ready
        self._on_gone = on_gone
        ours, theirs = channel_pair()
        try:
            with theirs:
                self._child = _start_child(ours, theirs, hello, memory.descriptor)
        except BaseException:
            ours.close()
            raise
        self._desk = Desk(
            lambda hear: self._open(ours, hear),
            model=runtime.model,
            admission=runtime.admission,
            batcher=runtime.batcher,
            metrics=runtime.metrics,
            answers=answers,
            rooms=rooms,
            on_ready=self._is_ready,
            regions=runtime.regions,
            shared=runtime.shared_requests,
        )

    @property
    def connections(self) -> int:
        """Clients that are connected to it."""
        return self._passed - self._counts.connections_closed

    @property
    def beats(self) -> int:
        """Grows for as long as its event loop turns."""
        return self._counts.beats

    @property
    def requests(self) -> int:
        """How many of its requests hold something."""
        return self._desk.requests

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def take(self, connection: int) -> None:
        """Pass a client's connection on, by its descriptor, which is closed here."""
        self._passed += 1
        self._channel.send_descriptor(Record(Kind.CONNECTION), connection)

    def tell_health(self) -> None:
        """Tell it the service's phase."""
        phase, *told = self._runtime.health.told()
        why = [sentence and sentence[:_LONGEST_REASON] for sentence in told]
        self._channel.send(Record(Kind.HEALTH, flag=phase, text=json.dumps(why).encode()))

    def stop(self) -> None:
        """Tell it to drain and end."""
        self._channel.send(Record(Kind.STOP))

    def kill(self) -> None:
        """End it now."""
        self._child.kill()

    async def _wait(self) -> int:
        # With no thread and no descriptor, of which none may be left.
        ends_s = time.monotonic() + _END_TIMEOUT_S
        while (status := self._child.poll()) is None:
            if time.monotonic() > ends_s:
                self._child.kill()
            await asyncio.sleep(_LOOK_S)
        return status

    def _open(self, ours: socket.socket, hear: OnRecord) -> Channel:
        self._channel = Channel(ours, hear, self._closed)
        return self._channel

    def _is_ready(self) -> None:
        self.ready = self.was_ready = True
        self._on_ready(self)

    def _closed(self) -> None:
        self.ready = False
        self._on_ready(self)
        self._ending = asyncio.ensure_future(self._take_back())

    async def _take_back(self) -> None:
        # It ends, or one of us has hung up: it must be gone before others get its slots.
        self.exit_status = await self._wait()
        self._desk.closed()
        self._on_gone(self)


def _start_child(
    ours: socket.socket, theirs: socket.socket, hello: Hello, memory: int
) -> subprocess.Popen[bytes]:
    # Before anything else can be said: the front end reads just this, then starts its loop.
    ours.send(pack(Record(Kind.HELLO, text=hello.pack())))
    descriptors = (theirs.fileno(), memory)
    return subprocess.Popen(
        [sys.executable, "-m", "service.workers.front_end", *map(str, descriptors), IDENTITY],
        pass_fds=descriptors,
    )
