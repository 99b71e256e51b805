"""Which series a PromQL expression reads. Prometheus parses them; this only finds the names."""

from __future__ import annotations

import re

_LABEL_LISTS = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_RANGES = re.compile(r"\[[^]]*\]|\boffset\s+\w+")
_SELECTOR = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(\{[^}]*\})?(?!\s*[\w(])")
_WORDS = {"and", "or", "unless", "bool", "on", "by", "without", "ignoring", "inf", "nan"}


def selectors(expr: str) -> list[str]:
    """Every `name{matchers}`, without range and offset."""
    text = _RANGES.sub("", _LABEL_LISTS.sub(" ", expr))
    return [
        name + (matchers or "")
        for name, matchers in _SELECTOR.findall(text)
        if name.lower() not in _WORDS
    ]


def metrics(expr: str) -> set[str]:
    """The names of what it reads."""
    return {selector.partition("{")[0] for selector in selectors(expr)}
