# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Rotary position embedding (Su et al. 2021) of heads [N, H, K], in float32; see `bringup.graphs.ops.rotary`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value


def rope(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its strides of tokens and heads; cos, its stride; sin, its stride; out, dense; N, H, K, C.

    Channel i rotates with channel i + C, or, interleaved, 2i with 2i + 1; channels from 2C are copied.
    """
    b = e.b
    x, cos, sin, out = (e.slot(at, POINTER) for at in (0, 3, 5, 7))
    token_stride, head_stride, cos_stride, sin_stride = (e.slot(at, I64) for at in (1, 2, 4, 6))
    tokens, heads, channels, pairs = (e.slot(at, I64) for at in (8, 9, 10, 11))
    begin, end = e.share(b.mul(tokens, heads))
    with e.loop(begin, end) as number:
        token, head = b.udiv(number, heads), b.urem(number, heads)
        source = e.at(x, settings["x"], b.add(b.mul(token, token_stride), b.mul(head, head_stride)))
        place = e.at(out, settings["x"], b.mul(number, channels))
        own_cos = e.at(cos, settings["table"], b.mul(token, cos_stride))
        own_sin = e.at(sin, settings["table"], b.mul(token, sin_stride))

        def write(i: Value, lanes: int) -> None:
            if settings["interleaved"]:
                first = b.mul(i, I64(2))
                second = b.add(first, I64(1))
            else:
                first, second = i, b.add(i, pairs)
            one, other = (e.load(source, settings["x"], at, lanes) for at in (first, second))
            c, s = e.load(own_cos, settings["table"], i, lanes), e.load(own_sin, settings["table"], i, lanes)
            e.store(place, settings["x"], first, b.fsub(b.fmul(one, c), b.fmul(other, s)))
            e.store(place, settings["x"], second, b.fadd(b.fmul(other, c), b.fmul(one, s)))

        if settings["interleaved"]:
            with e.loop(I64(0), pairs) as i:
                write(i, 1)
        else:
            e.each(I64(0), pairs, write)
        e.each(
            b.mul(pairs, I64(2)),
            channels,
            lambda k, lanes: e.store(place, settings["x"], k, e.load(source, settings["x"], k, lanes)),
        )
    e.finish()
