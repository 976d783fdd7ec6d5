"""The lowering of a call of an op while a graph is traced: one switch for all ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLowering:
    """By `Op.name`: the ops that remain opaque torch operators, and those with another implementation.

    An implementation has the arguments and results of the reference. All other ops are inlined: the operations of
    their references are traced.
    """

    opaque: Collection[str] = frozenset()
    implementations: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])


INLINED = OpLowering()
_current: ContextVar[OpLowering] = ContextVar("op_lowering", default=INLINED)


@contextmanager
def using(lowering: OpLowering) -> Generator[None]:
    """Calls of ops in the block are lowered as `lowering` defines."""
    token = _current.set(lowering)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> OpLowering:
    """The lowering that applies here; outside of `using`, all ops are inlined."""
    return _current.get()
