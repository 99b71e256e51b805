"""All front ends: started, given connections, restarted when they die, told to end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from service.batching.blocks import Blocks
from service.runtime import Runtime
from service.workers.hello import Hello
from service.workers.memory import SharedMemory
from service.workers.process import FrontEndProcess

logger = logging.getLogger(__name__)

# As many connections are passed on in one turn of the event loop.
_ACCEPTS_A_TURN = 32
# When the process has no descriptor left, until one may be free.
_ACCEPT_PAUSE_S = 0.1
# After starts that failed, one after the other, until the next: a shortage of descriptors,
# processes or memory passes. Once there are as many without any front end, it will not get better.
_PAUSES_S = (0.5, 2.0, 8.0, 30.0)
# An event loop that stands still for so long holds slots for nobody.
_HUNG_S = 30.0


class Pool:
    """The front ends of a service, and the listening sockets.

    A connection goes to the front end that has the fewest: a kernel that deals them out by hash or
    by who wakes first gives 16 clients to 8 processes as unevenly as dice do.

    Args:
        runtime: The service, started.
        memory: What all processes share.
        answers: Where slots for answers come from.
        rooms: Where rooms for bundles come from.
        on_failed: Called when there is no front end, and none can be started.
    """

    def __init__(
        self,
        runtime: Runtime,
        memory: SharedMemory,
        answers: Blocks,
        rooms: Blocks,
        on_failed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._memory = memory
        self._answers = answers
        self._rooms = rooms
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._accepting = False
        # Said once, until nobody waits any more.
        self._waiting_said = False
        self._stopping = False
        self._failed_starts = 0
        # Those that are to be tried again, all at one time.
        self._unstarted: list[int] = []
        self._retry_handle: asyncio.Handle | None = None
        self._none_left = asyncio.Event()
        self._watch = asyncio.ensure_future(self._end_the_hung())
        self.front_ends: dict[int, FrontEndProcess] = {}
        self.clean = True

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Start the front ends, and accept connections as soon as one is ready."""
        self._listeners = list(listeners)
        for index in range(self._runtime.settings.workers):
            self._start(index)

    def tell_health(self) -> None:
        """Tell all of them the service's phase."""
        for front_end in self.front_ends.values():
            front_end.tell_health()

    def stop(self) -> None:
        """Tell all of them to drain and end; connections are accepted until `close`."""
        self._stopping = True
        self._watch.cancel()
        if self._retry_handle is not None:
            self._retry_handle.cancel()
        for front_end in self.front_ends.values():
            front_end.stop()

    def close(self) -> None:
        """Accept no more."""
        self._stopping = True
        self._accept_or_not(False)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def ended(self, timeout_s: float) -> bool:
        """Wait until all have ended, and kill those that do not; whether all ended well."""
        if self.front_ends:
            try:
                await asyncio.wait_for(self._none_left.wait(), timeout_s)
            except asyncio.TimeoutError:
                self.clean = False
                logger.error("%d front ends did not end, killed", len(self.front_ends))
                self.kill()
                await self._none_left.wait()
        return self.clean

    def kill(self) -> None:
        """End all of them now."""
        for front_end in self.front_ends.values():
            front_end.kill()

    def _start(self, index: int) -> None:
        runtime = self._runtime
        hello = Hello(
            index=index,
            arena_bytes=self._memory.bodies.nbytes,
            settings=runtime.settings,
            model=runtime.model,
            backend=runtime.backend,
            device=runtime.device,
            reason=runtime.reason,
            cuda_shared_memory=runtime.regions is not None and runtime.regions.cuda is not None,
        )
        try:
            front_end = FrontEndProcess(
                hello,
                self._memory,
                runtime,
                self._answers,
                self._rooms,
                on_ready=self._ready,
                on_gone=self._gone,
            )
        except OSError as error:
            self._start_failed(index, f"cannot be started: {error}")
            return
        self.front_ends[index] = front_end
        front_end.tell_health()

    def _start_failed(self, index: int, what: str) -> None:
        """Try again after a pause, or give up."""
        self._unstarted.append(index)
        if self._retry_handle is None:
            self._failed_starts += 1
            pause_s = _PAUSES_S[min(self._failed_starts, len(_PAUSES_S)) - 1]
            self._retry_handle = self._loop.call_later(pause_s, self._start_again)
            logger.error("front end %d %s; another is tried in %g s", index, what, pause_s)
        else:
            # With one that failed before it, as one.
            logger.error("front end %d %s", index, what)
        if self._failed_starts >= len(_PAUSES_S) and not self.front_ends:
            self._retry_handle.cancel()
            self._on_failed()

    def _start_again(self) -> None:
        self._retry_handle = None
        indices, self._unstarted = self._unstarted, []
        for index in indices:
            self._start(index)

    def _ready(self, front_end: FrontEndProcess) -> None:
        if front_end.ready:
            self._failed_starts = 0
        self._accept_or_not()

    def _gone(self, front_end: FrontEndProcess) -> None:
        del self.front_ends[front_end.index]
        self._accept_or_not()
        if self._stopping:
            self.clean = self.clean and front_end.exit_status == 0
            if not self.front_ends:
                self._none_left.set()
        elif front_end.was_ready:
            logger.error(
                "front end %d has ended with status %s, starting another",
                front_end.index,
                front_end.exit_status,
            )
            self._start(front_end.index)
        else:
            what = f"has ended with status {front_end.exit_status} before it was ready"
            self._start_failed(front_end.index, what)

    def _accept_or_not(self, wanted: bool = True) -> None:
        """Listen while somebody can take connections; otherwise they wait in the kernel."""
        wanted = wanted and any(front_end.ready for front_end in self.front_ends.values())
        if wanted is self._accepting:
            return
        self._accepting = wanted
        for listener in self._listeners:
            if wanted:
                self._loop.add_reader(listener.fileno(), self._accept, listener)
            else:
                self._loop.remove_reader(listener.fileno())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            ready = [front_end for front_end in self.front_ends.values() if front_end.ready]
            if not ready:
                # The last one's channel broke over the connection before.
                return
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                self._waiting_said = False
                return
            except ConnectionAbortedError:
                return
            except OSError as error:
                if not self._waiting_said:
                    self._waiting_said = True
                    logger.error("connections have to wait: %s", error)
                self._accept_or_not(False)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_or_not)
                return
            chosen = min(ready, key=lambda front_end: front_end.connections)
            chosen.take(connection.detach())

    async def _end_the_hung(self) -> None:
        """Kill front ends whose event loop stands still, or does not come to turn."""
        seen: dict[int, tuple[int, int]] = {}
        while True:
            await asyncio.sleep(_HUNG_S)
            for index, front_end in self.front_ends.items():
                now = (front_end.pid, front_end.beats)
                if seen.get(index) == now:
                    logger.error("front end %d hangs, killed", index)
                    front_end.kill()
                seen[index] = now
