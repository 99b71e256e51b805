"""One real process for all tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.exact import ExactModel
from tests.servers import ServerProcess


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> ExactModel:
    return ExactModel(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(params=[0, 3], ids=["one process", "3 workers"])
def workers(request, monkeypatch) -> int:
    """Every service of the test with HTTP in one process with the engine, or in others."""
    monkeypatch.setenv("MLP_WORKERS", str(request.param))
    return int(request.param)


@pytest.fixture(scope="session", params=[0, 3], ids=["one process", "3 workers"])
def server(request, model, tmp_path_factory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine, threads of one small product wait for each other 50 times as long as
        # it takes.
        patch.setenv("OMP_NUM_THREADS", "1")
        # The delay makes batches likely where the engine is faster than the clients.
        process = ServerProcess(
            log,
            model=model.folder,
            device="cpu",
            max_queue_delay_s=0.002,
            workers=request.param,
        )
    with process as server:
        yield server
        assert server.terminate() == 0
        assert "Traceback" not in server.log
