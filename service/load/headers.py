"""What the headers and error bodies of answers say beyond the tensor."""

from __future__ import annotations

import json
import re

from service.load.reader import Answer

# Longer pauses are not for a load test; the largest that the service itself asks for is 1 s.
_LONGEST_PAUSE_S = 60.0
_TIMING = re.compile(rb"([\w-]+)\s*;[^,]*?\bdur=(\d+(?:\.\d+)?)")


def parse_server_timing(value: bytes) -> list[tuple[str, float]]:
    """Metrics of a `Server-Timing` header that have a duration: (name, milliseconds)."""
    return [(name.decode(), float(duration)) for name, duration in _TIMING.findall(value)]


def retry_after_s(answer: Answer) -> float:
    """Seconds that the service asks to wait; 0 where it does not, or not in seconds."""
    value = answer.headers.get(b"retry-after", b"")
    return min(float(value), _LONGEST_PAUSE_S) if value.isdigit() else 0.0


def describe_error(answer: Answer) -> tuple[str, str]:
    """An answer other than 200 as (`status code`, message), from `{"error", "code"}`."""
    text = bytes(answer.body[:2000]).decode("utf-8", "replace")
    try:
        error = json.loads(text)
    except ValueError:
        error = None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return str(answer.status), text[:200]
    return f"{answer.status} {error['code'][:40]}", str(error.get("error", ""))[:200]
