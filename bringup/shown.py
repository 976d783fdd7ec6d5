"""Texts from untrusted files, shortened for messages."""

from __future__ import annotations

from reprlib import Repr

MOST = 200  # characters of a name; published ones have fewer than 100

_SHORT = Repr()
_SHORT.maxlevel = 4
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 8
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 80


def shown(value: object) -> str:
    """The repr of a JSON value, its middle omitted if it is long or deep."""
    return _SHORT.repr(value)


def short(name: str) -> str:
    """A name, cut if it is very long."""
    return name if len(name) <= MOST else f"{name[:MOST]}… ({len(name):,} characters)"
