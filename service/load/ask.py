"""A single request outside the load: on a connection of its own, awaited."""

from __future__ import annotations

import asyncio
import json

from service.errors import StartError
from service.load.client import Connection, connect
from service.load.faults import Fault
from service.load.headers import describe_error
from service.load.options import Address
from service.load.reader import Answer


class _Waiter:
    """Owner of a connection that makes one request."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def answered(self, connection: Connection, answer: Answer) -> None:  # noqa: ARG002
        self.answer.set_result(answer)

    def failed(self, connection: Connection, fault: Fault, message: str) -> None:  # noqa: ARG002
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(message))

    def lost(self, connection: Connection) -> None:
        """The answer is there already, or `failed` would have been called."""


async def ask(address: Address, request: bytes, timeout_s: float) -> Answer:
    """The answer with status 200 to a request.

    Raises:
        StartError: there is none.
    """
    waiter = _Waiter()
    target = request.split(b" ", 2)[1].decode("ascii")
    where = f"http://{address.authority}{target}"
    try:
        connection = await connect(waiter, address, timeout_s)
        try:
            connection.send(request)
            answer = await asyncio.wait_for(waiter.answer, timeout_s)
        finally:
            connection.abort()
    except (OSError, asyncio.TimeoutError) as error:
        reason = str(error) or f"no whole answer within {timeout_s:g} s"
        raise StartError(f"{where}: {reason}") from None
    if answer.status != 200:
        status, message = describe_error(answer)
        raise StartError(f"{where}: answered {status}: {message}")
    return answer


async def ask_json(address: Address, request: bytes, timeout_s: float) -> object:
    """The JSON value in the answer to a request.

    Raises:
        StartError: there is none.
    """
    answer = await ask(address, request, timeout_s)
    try:
        value: object = json.loads(bytes(answer.body))
    except ValueError:
        target = request.split(b" ", 2)[1].decode("ascii")
        raise StartError(f"http://{address.authority}{target}: the answer is not JSON") from None
    return value
