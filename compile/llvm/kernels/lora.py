# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Products with the LoRA of each token's sequence; see `bringup.graphs.ops.lora`. Only slots in use are read.

N tokens · B sequences · r rank · i in · o out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.emitter import I64, POINTER, Cell, Emitter, Value
from bringup.compile.llvm.kernels.matmul import combined


def lora_shrink(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; A of all slots, dense; slots; starts; out, dense; N; B; r; i."""
    b = e.b
    x, a, slots, starts, out = (e.slot(at, POINTER) for at in (0, 2, 3, 4, 5))
    stride, tokens, sequences, rank, channels = (e.slot(at, I64) for at in (1, 6, 7, 8, 9))
    begin, end = e.share(b.mul(tokens, rank))
    with e.loop(begin, end) as number:
        token, row = b.udiv(number, rank), b.urem(number, rank)
        slot = _slot(e, settings, slots, starts, sequences, token)
        has_lora = b.icmp_signed(">=", slot, I64(0))
        source = e.at(x, settings["x"], b.mul(token, stride))
        factors = e.at(a, settings["weight"], b.mul(b.add(b.mul(slot, rank), row), channels))
        count = b.select(has_lora, channels, I64(0))

        def product(k: Value, lanes: int, source: Value = source, factors: Value = factors) -> Value:
            return b.fmul(e.load(source, settings["x"], k, lanes), e.load(factors, settings["weight"], k, lanes))

        e.store(out, settings["out"], number, e.sum(I64(0), count, product))
    e.finish()


def lora_expand(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: h, its stride; B of all slots, dense; slots; starts; out, dense; N; B; r; o. A thread has some columns."""
    b = e.b
    h, weight, slots, starts, out = (e.slot(at, POINTER) for at in (0, 2, 3, 4, 5))
    stride, tokens, sequences, rank, columns = (e.slot(at, I64) for at in (1, 6, 7, 8, 9))
    begin, end = e.share(columns, 2 * e.machine.lanes)
    with e.loop(I64(0), tokens) as token:
        slot = _slot(e, settings, slots, starts, sequences, token)
        source = e.at(h, settings["x"], b.mul(token, stride))
        matrix = e.at(weight, settings["weight"], b.mul(b.mul(slot, rank), columns))
        count = b.select(b.icmp_signed(">=", slot, I64(0)), rank, I64(0))

        def factor(_: int, k: Value, source: Value = source) -> Value:
            return e.load(source, settings["x"], k)

        def write(_: int, at: Value, value: Value, token: Value = token) -> None:
            e.store(out, settings["out"], b.add(b.mul(token, columns), at), value)

        combined(e, settings["weight"], matrix, columns, count, begin, end, 1, factor, write)
    e.finish()


def _slot(
    e: Emitter, settings: Mapping[str, Any], slots: Value, starts: Value, sequences: Value, token: Value
) -> Value:
    """The slot of a token's sequence; below 0 where it has no LoRA, and for padding."""
    b = e.b
    if settings["decode"]:
        return e.load(slots, "int64", token)
    found = Cell(b, I64, I64(-1))
    with e.loop(I64(0), sequences) as n:
        own = b.icmp_signed(">=", token, e.load(starts, "int64", n))
        inside = b.icmp_signed("<", token, e.load(starts, "int64", b.add(n, I64(1))))
        found.set(b.select(b.and_(own, inside), e.load(slots, "int64", n), found.get()))
    return found.get()
