"""Logging set-up: one line per event on stderr, UTC, grep-able."""

from __future__ import annotations

import logging
import sys
import time


def configure_logging(level: str) -> None:
    """Send everything of `level` and above to stderr, replacing earlier handlers."""
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Each request is counted in the metrics; a line each would cost more than serving it.
    logging.getLogger("uvicorn.access").disabled = True
