"""A mistake that explains other findings, which are then not reported."""

from __future__ import annotations

from typing import NamedTuple

from bringup.diagnostics import Diagnostic


class Cause(NamedTuple):
    """A finding with the tensors, missing or unread, and the keys of the config that it explains."""

    finding: Diagnostic
    tensors: frozenset[str]
    keys: frozenset[str] = frozenset()
