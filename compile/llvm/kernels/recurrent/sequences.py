# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Loops over the sequences of a step, and over its padding."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, Value


class Sequence(NamedTuple):
    """Tokens first:end of the step, `count` of them, and the row of the states. `is_new`: they are the first tokens of
    the sequence, before which the state is zeros. The state after the first `certain` tokens is stored: all, unless the
    step has proposals."""

    first: Value
    end: Value
    count: Value
    row: Value
    is_new: Value
    certain: Value


@contextmanager
def sequences(
    e: Emitter, starts: Value, rows: Value, lengths: Value, certain: Value | None, count: Value
) -> Generator[Sequence]:
    """A loop over the sequences that have tokens."""
    with e.loop(I64(0), count) as number, one_sequence(e, starts, rows, lengths, certain, number) as found:
        yield found


@contextmanager
def one_sequence(
    e: Emitter, starts: Value, rows: Value, lengths: Value, certain: Value | None, number: Value
) -> Generator[Sequence]:
    """Sequence `number`, if it has tokens. `certain` is the address of that field; None if all tokens are."""
    b = e.b
    first, end = (e.load(starts, "int64", at) for at in (number, b.add(number, I64(1))))
    own = b.sub(end, first)
    with b.if_then(b.icmp_signed(">", own, I64(0))):
        is_new = b.icmp_signed("<=", e.load(lengths, "int64", number), own)
        stored = own if certain is None else e.load(certain, "int64", number)
        yield Sequence(first, end, own, e.load(rows, "int64", number), is_new, stored)


@contextmanager
def padding(e: Emitter, starts: Value, count: Value, tokens: Value) -> Generator[Value]:
    """A loop over the tokens after the last sequence."""
    with e.loop(e.load(starts, "int64", count), tokens) as token:
        yield token
