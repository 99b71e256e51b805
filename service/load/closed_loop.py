"""Closed loop: each connection sends its next request when it has the answer to the last."""

from __future__ import annotations

import asyncio
import time

from service.load.client import Connection
from service.load.driver import Driver


class ClosedLoop(Driver):
    """As many clients as connections, each waiting for its answer.

    A client that is told to come back later (`Retry-After`) does, as a well-behaved one would. The
    pause is no latency, but it is lost throughput.
    """

    def begin(self) -> None:
        """Let every client send its first request."""
        for connection in list(self.connections):
            self.free(connection, 0.0)

    def free(self, connection: Connection, pause_s: float) -> None:
        """Send the next request, now or after the pause."""
        if pause_s > 0:
            asyncio.get_running_loop().call_later(pause_s, self.free, connection, 0.0)
            return
        now = time.monotonic_ns()
        if now < self.end_ns and connection.is_open:  # it may have been closed in the pause
            self.send(connection, next(self.mix), now)

    def wants_connections(self) -> bool:
        """Until the end of the measured time."""
        return time.monotonic_ns() < self.end_ns

    def give_up(self) -> None:
        """Nothing waits in a closed loop."""
