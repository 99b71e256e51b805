import pytest

from service.load.options import LoadOptions
from service.load.run import run_load
from tests.load.fake_server import FakeServer


@pytest.fixture
def load():
    """Load-test a fake service: returns the only load's result, and the server."""

    def run(twist=None, spare=8, **changes):
        options = {
            "connections": 4,
            "duration_s": 0.15,
            "warm_up_s": 0.0,
            "timeout_s": 5.0,
            "quiet": True,
            **changes,
        }
        with FakeServer(twist, spare) as server:
            report = run_load(LoadOptions(url=server.url, **options))
        return report.results[0], server

    return run
