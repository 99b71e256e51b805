"""One service around a well-behaved engine, for all tests that need nothing special."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from service.runtime import Runtime
from tests.engines import FakeEngine
from tests.servers import ServerThread


@dataclass
class Service:
    url: str
    client: httpx.Client
    engine: FakeEngine
    runtime: Runtime


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """Whoever changes the engine's behaviour starts a server of its own."""
    engine = FakeEngine()
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url, timeout=30) as client:
        yield Service(thread.url, client, engine, thread.runtime)
