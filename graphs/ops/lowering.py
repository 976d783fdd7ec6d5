"""What a call of an op becomes while a graph is traced: one switch for all ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLowering:
    """By name of an op (`Op.name`): which stay whole, as torch operators, and which have another implementation.

    An implementation takes what the reference takes and gives what it gives. All other ops become the operations of
    their references.
    """

    opaque: Collection[str] = frozenset()
    implementations: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])


INLINED = OpLowering()
_current: ContextVar[OpLowering] = ContextVar("op_lowering", default=INLINED)


@contextmanager
def using(lowering: OpLowering) -> Generator[None]:
    """Calls of ops in the block become what `lowering` says."""
    token = _current.set(lowering)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> OpLowering:
    """What calls of ops become here; outside of `using` their references' operations."""
    return _current.get()
