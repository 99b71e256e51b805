"""The real server around the fake engine, as a process of its own.

Usage: python -m tests.e2e.fake_service RUN_S; settings come from `MLP_…` variables.
"""

from __future__ import annotations

import logging
import sys

import numpy as np

from service.config import load_settings
from service.engine.base import Batch, BatchReport
from service.errors import EngineDead
from service.log import configure_logging
from service.server import serve
from tests.engines import FakeEngine

# A row with this in it kills the engine, as an illegal memory access does.
FATAL = 666.0


class MortalEngine(FakeEngine):
    """Dies of a batch with FATAL in it, and says in the log when it is used afterwards."""

    dead = False

    def run(self, batch: Batch) -> BatchReport:
        self._check()
        for segment in batch.segments:
            if (np.frombuffer(segment.input, "<f4") == FATAL).any():
                self.dead = True
                raise EngineDead("CUDA error: an illegal memory access was encountered")
        return super().run(batch)

    def self_test(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.dead:
            logging.critical("USED AFTER DEATH")


if __name__ == "__main__":
    settings = load_settings()
    configure_logging(settings.log_level)
    sys.exit(serve(settings, MortalEngine(run_s=float(sys.argv[1]))))
