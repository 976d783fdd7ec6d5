# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Products with the LoRA of each row; see `bringup.graphs.ops.lora` and `moe_lora`. Only slots in use are read.

N rows: tokens, or rows of blocks of experts · B sequences · r rank · i in · o out · v rows of a table

`rows` selects how the factors of a row are found. "decode": row b has the slot of sequence b. "prompts": the slot of
the sequence that contains the token. "experts": there is a slot for each row, with a set of factors for each expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value
from bringup.compile.llvm.kernels.matmul import combined


def lora_shrink(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride; A of all slots, dense; out, dense; N; r; i; and those of `_factors`."""
    b = e.b
    x, a, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    stride, tokens, rank, channels = (e.slot(at, I64) for at in (1, 4, 5, 6))
    begin, end = e.share(b.mul(tokens, rank))
    with e.loop(begin, end) as number:
        token, row = b.udiv(number, rank), b.urem(number, rank)
        matrix = _factors(e, settings, token)
        source = e.at(x, settings["x"], b.mul(token, stride))
        factors = e.at(a, settings["weight"], b.mul(b.add(b.mul(matrix, rank), row), channels))
        count = b.select(b.icmp_signed(">=", matrix, I64(0)), channels, I64(0))

        def product(k: Value, lanes: int, source: Value = source, factors: Value = factors) -> Value:
            return b.fmul(e.load(source, settings["x"], k, lanes), e.load(factors, settings["weight"], k, lanes))

        e.store(out, settings["out"], number, e.sum(I64(0), count, product))
    e.finish()


def lora_expand(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: h, its stride; B of all slots, dense; out, dense; N; r; o; and those of `_factors`.

    A thread computes some columns.
    """
    b = e.b
    h, weight, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    stride, tokens, rank, columns = (e.slot(at, I64) for at in (1, 4, 5, 6))
    begin, end = e.share(columns, 2 * e.machine.lanes)
    with e.loop(I64(0), tokens) as token:
        found = _factors(e, settings, token)
        source = e.at(h, settings["x"], b.mul(token, stride))
        matrix = e.at(weight, settings["weight"], b.mul(b.mul(found, rank), columns))
        count = b.select(b.icmp_signed(">=", found, I64(0)), rank, I64(0))

        def factor(_: int, k: Value, source: Value = source) -> Value:
            return e.load(source, settings["x"], k)

        def write(_: int, at: Value, value: Value, token: Value = token) -> None:
            e.store(out, settings["out"], b.add(b.mul(token, columns), at), value)

        combined(e, settings["weight"], matrix, columns, count, begin, end, 1, factor, write)
    e.finish()


def lora_lookup(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the number of each token's row of the table; 0; A of all slots, dense; out, dense; N; r; v; and those of
    `_factors`."""
    b = e.b
    numbers, a, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    tokens, rank, rows = (e.slot(at, I64) for at in (4, 5, 6))
    begin, end = e.share(tokens)
    with e.loop(begin, end) as token:
        matrix = _factors(e, settings, token)
        column = e.at(a, settings["weight"], e.load(numbers, settings["x"], token))
        count = b.select(b.icmp_signed(">=", matrix, I64(0)), rank, I64(0))
        first, own = b.mul(matrix, rank), b.mul(token, rank)
        with e.loop(I64(0), count) as row:
            value = e.load(column, settings["weight"], b.mul(b.add(first, row), rows))
            e.store(out, settings["out"], b.add(own, row), value)
        with e.loop(count, rank) as row:
            e.store(out, settings["out"], b.add(own, row), e.zero(1))
    e.finish()


def slots_to_blocks(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the slot of each token, its stride; the row of each choice, dense; out; choices; choices of a token; rows.

    A thread writes some rows, and reads all choices.
    """
    b = e.b
    slot, row, out = (e.slot(at, POINTER) for at in (0, 2, 3))
    stride, choices, share, rows = (e.slot(at, I64) for at in (1, 4, 5, 6))
    begin, end = e.share(rows)
    with e.loop(begin, end) as number:
        e.store(out, "int64", number, I64(-1))
    with e.loop(I64(0), choices) as choice:
        at = e.load(row, "int64", choice)
        is_own = b.and_(b.icmp_signed(">=", at, begin), b.icmp_signed("<", at, end))
        with b.if_then(is_own):
            e.store(out, "int64", at, e.load(slot, "int64", b.mul(b.udiv(choice, share), stride)))
    e.finish()


def _factors(e: Emitter, settings: Mapping[str, Any], row: Value) -> Value:
    """The index of a row's factors; negative without a LoRA, and for padding.

    Slots, from the seventh: slots; starts of sequences and B; or the expert of each block, rows of a block, experts.
    """
    b, slots, owners, count = e.b, e.slot(7, POINTER), e.slot(8, POINTER), e.slot(9, I64)
    if settings["rows"] == "decode":
        return e.load(slots, "int64", row)
    if settings["rows"] == "experts":
        slot, expert = e.load(slots, "int64", row), e.load(owners, "int64", b.udiv(row, count))
        number = b.add(b.mul(slot, e.slot(10, I64)), expert)
        return b.select(b.icmp_signed(">=", slot, I64(0)), number, I64(-1))
    found = Cell(b, I64, I64(-1))
    with e.loop(I64(0), count) as n:
        own = b.icmp_signed(">=", row, e.load(owners, "int64", n))
        inside = b.icmp_signed("<", row, e.load(owners, "int64", b.add(n, I64(1))))
        found.set(b.select(b.and_(own, inside), e.load(slots, "int64", n), found.get()))
    return found.get()
