# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Converts rows of a packed matrix to floats: the rows of an embedding, or all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter
from bringup.compile.llvm.kernels.quant.weight import Weight

SLOTS = 5  # before those of the weight


def quant_lookup(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: row indices, their stride; out, dense; number of rows; K; weight. `chosen` is the dtype of the indices.

    If `chosen` is empty, all rows are converted, matrix by matrix; the first slot is the number of rows of a matrix.
    """
    b = e.b
    out, count, channels = e.slot(2, POINTER), e.slot(3, I64), e.slot(4, I64)
    weight = Weight(e, settings["weight"], SLOTS)
    chosen, stride = e.slot(0, POINTER if settings["chosen"] else I64), e.slot(1, I64)
    begin, end = e.share(count)
    with e.loop(begin, end) as n:
        own = weight
        if settings["chosen"]:
            row = e.load(chosen, settings["chosen"], b.mul(n, stride))
        else:
            row, own = b.urem(n, chosen), weight.matrix(b.udiv(n, chosen))
        place = e.at(out, settings["out"], b.mul(n, channels))
        own.row(row, channels, lambda k, lanes, value, place=place: e.store(place, settings["out"], k, value))
    e.finish()
