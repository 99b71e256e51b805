"""Questions of a front end to the engine's process, each of which one record answers, or a text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.errors import ServiceError
from service.workers.records import Record


class Asking:
    """Sends records and waits for what answers them, by request.

    Args:
        say: Sends a record.
        unwanted: Called with the number of a request that ended before its question was answered,
            once it is: what it was granted is to be given back.
    """

    def __init__(self, say: Callable[[Record], None], unwanted: Callable[[int], None]) -> None:
        self._say = say
        self._on_unwanted = unwanted
        self._waiting: dict[int, asyncio.Future[Record]] = {}
        self._texts: dict[int, bytes] = {}
        self._unwanted: set[int] = set()
        self._dead: ServiceError | None = None

    async def ask(self, record: Record) -> Record:
        """Send a record, and wait for the one that answers it.

        Raises:
            ServiceError: the engine's process refused, or is gone.
        """
        if self._dead is not None:
            raise self._dead
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting[record.request] = future
        try:
            self._say(record)
            return await future
        finally:
            del self._waiting[record.request]

    async def ask_for_grant(self, record: Record) -> Record:
        """The same where the answer grants something to a new request, which may end meanwhile."""
        try:
            return await self.ask(record)
        except asyncio.CancelledError:
            self._unwanted.add(record.request)
            raise

    async def ask_for_text(self, record: Record) -> bytes:
        """The same where the answer is a text, which may come in pieces."""
        await self.ask(record)
        return self._texts.pop(record.request)

    def granted(self, record: Record) -> None:
        """A question was answered."""
        future = self._waiting.get(record.request)
        if future is not None and not future.done():
            future.set_result(record)
        elif record.request in self._unwanted:
            self._unwanted.remove(record.request)
            self._on_unwanted(record.request)

    def text(self, record: Record) -> None:
        """A piece of a text has come."""
        number = record.request
        future = self._waiting.get(number)
        if future is None or future.done():
            self._texts.pop(number, None)
            return
        self._texts[number] = self._texts.get(number, b"") + record.text
        if record.flag:
            future.set_result(record)

    def failed(self, number: int, error: ServiceError) -> bool:
        """A request was refused; whether somebody has asked."""
        self._unwanted.discard(number)
        future = self._waiting.get(number)
        if future is None:
            return False
        if not future.done():
            future.set_exception(error)
        return True

    def fail_all(self, error: ServiceError) -> None:
        """Nobody answers any more."""
        self._dead = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
