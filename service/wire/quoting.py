"""How a client's own words are repeated in an error message: short, whatever was sent."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 4
_SHORT.maxlevel = 2


def quote(value: object) -> str:
    """The repr of a value, cut to what fits into a sentence."""
    return _SHORT.repr(value)
