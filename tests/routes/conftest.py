"""Services around well-behaved engines, for all tests that need nothing special."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from service.runtime import Runtime
from tests.e2e.scrape import wait_at_rest
from tests.engines import FakeEngine
from tests.routes.sharing import SIZE, register
from tests.servers import ServerThread
from tests.shared_objects import SharedObject, shared_object


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


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "2 workers"])
def sharing(request: pytest.FixtureRequest) -> Iterator[Service]:
    engine = FakeEngine()
    with (
        ServerThread(
            engine, client_shared_memory=True, max_queue_tokens=8192, workers=request.param
        ) as thread,
        httpx.Client(base_url=thread.url, timeout=30) as client,
    ):
        yield Service(thread.url, client, engine, thread.runtime)


@pytest.fixture
def memory(sharing: Service) -> Iterator[SharedObject]:
    """An object, all of it registered as `r`."""
    with shared_object(SIZE) as made:
        register(sharing, "r", made)
        yield made
    sharing.client.post("/v2/systemsharedmemory/unregister")
    wait_at_rest(sharing.url)
