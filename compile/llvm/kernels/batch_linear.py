# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Batched x · weightᵀ + bias: the kernel of a single product for each batch, with its own weight or that of its expert.

The weights of an expert without batches are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import KERNEL, Emitter, Value
from bringup.compile.llvm.kernels.expert_rows import rows_of_blocks


def batch_linear(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: the `count` slots of the kernel `inner` for the first batch; for each address in `moved` (x, weight, bias,
    out), the bytes by which it advances per batch; batches; for experts: the expert of each batch.

    `rows`: a batch is a block of rows of tokens, and empty blocks are skipped. It is the slot of `inner` with the
    number of rows, or -1 if that is fixed. The next slots are the row of each choice, choices, rows of a block, and the
    bytes of scratch memory of `inner`, after which there is an int64 for each block.
    """
    b, count, moved = e.b, settings["count"], settings["moved"]
    after = count + len(moved)
    steps = [e.slot(count + n, I64) for n in range(len(moved))]
    batches = e.slot(after, I64)
    with b.goto_entry_block():
        slots = b.alloca(I64, size=count)
    for at in range(count):
        b.store(e.slot(at, I64), _slot(e, slots, at))
    rows = None
    if settings["rows"] is not None:
        rows = b.gep(e.scratch, [e.slot(after + 5, I64)], source_etype=ir.IntType(8))
        height = e.slot(after + 4, I64)
        rows_of_blocks(e, e.slot(after + 2, POINTER), e.slot(after + 3, I64), height, batches, rows)
    with e.loop(I64(0), batches) as batch:
        used = e.load(rows, "int64", batch) if rows is not None else None
        if used is None:
            _run(e, settings, slots, steps, batch, used)
        else:
            with b.if_then(b.icmp_signed(">", used, I64(0))):
                _run(e, settings, slots, steps, batch, used)
    e.finish()


def _run(
    e: Emitter, settings: Mapping[str, Any], slots: Value, steps: list[Value], batch: Value, used: Value | None
) -> None:
    """The product of one batch."""
    b, count = e.b, settings["count"]
    expert = batch
    if settings["experts"]:
        expert = e.load(e.slot(count + len(steps) + 1, POINTER), "int64", batch)
    for (name, at), step in zip(settings["moved"], steps, strict=True):
        number = expert if name in ("weight", "bias") else batch
        b.store(b.add(e.slot(at, I64), b.mul(number, step)), _slot(e, slots, at))
    if used is not None and settings["rows"] >= 0:
        b.store(used, _slot(e, slots, settings["rows"]))
    inner = e.module.globals.get(settings["inner"].name) or ir.Function(e.module, KERNEL, settings["inner"].name)
    b.call(inner, [slots, e.part, e.parts, e.scratch])


def _slot(e: Emitter, slots: Value, at: int) -> Value:
    return e.b.gep(slots, [I64(at)], source_etype=I64)
