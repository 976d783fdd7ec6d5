# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Writes rows of tokens [N, G, K] to their slots of a cache; see `bringup.graphs.ops.kv_cache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.functions import maximum, minimum

LARGEST = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}  # finite


def write_cache(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: cache, dense; slots; rows, their strides of tokens and heads; N, G, K."""
    b = e.b
    cache, slots, rows = (e.slot(at, POINTER) for at in (0, 1, 2))
    token_stride, head_stride, tokens, heads, channels = (e.slot(at, I64) for at in (3, 4, 5, 6, 7))
    begin, end = e.share(b.mul(tokens, heads))
    with e.loop(begin, end) as number:
        token, head = b.udiv(number, heads), b.urem(number, heads)
        source = e.at(rows, settings["rows"], b.add(b.mul(token, token_stride), b.mul(head, head_stride)))
        row = b.add(b.mul(e.load(slots, "int64", token), heads), head)
        place = e.at(cache, settings["cache"], b.mul(row, channels))

        def write(k: Value, lanes: int) -> None:
            value = e.load(source, settings["rows"], k, lanes)
            largest = LARGEST[settings["cache"]]
            if largest < LARGEST[settings["rows"]]:
                value = maximum(e, real(-largest, value), minimum(e, real(largest, value), value))  # NaN stays NaN
            e.store(place, settings["cache"], k, value)

        e.each(I64(0), channels, write)
    e.finish()
