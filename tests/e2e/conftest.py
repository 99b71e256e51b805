"""One real process for all tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.exact import ExactModel
from tests.servers import ServerProcess


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> ExactModel:
    return ExactModel(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def server(model, tmp_path_factory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine, threads of one small product wait for each other 50 times as long as
        # it takes.
        patch.setenv("OMP_NUM_THREADS", "1")
        # The delay makes batches likely where the engine is faster than the clients.
        process = ServerProcess(log, model=model.folder, device="cpu", max_queue_delay_s=0.002)
    with process as server:
        yield server
        assert server.terminate() == 0
        assert "Traceback" not in server.log
