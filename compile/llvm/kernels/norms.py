# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Norms of rows, in float32: layer_norm (Ba et al. 2016), rms_norm (Zhang and Sennrich 2019), and softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import F32, F64, I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.ir.functions import exp, maximum, rsqrt


def rms_norm(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `_rows`; weight, eps, offset of the weight. See `bringup.graphs.ops.norm` for the roundings."""
    b = e.b
    weight, eps, offset = e.slot(7, POINTER), _float(e, 8), _float(e, 9)

    def row(x: Value, out: Value, width: Value) -> None:
        def square(k: Value, lanes: int) -> Value:
            value = e.load(x, settings["x"], k, lanes)
            return b.fmul(value, value)

        mean = b.fdiv(e.sum(I64(0), width, square), b.sitofp(width, F32))
        factor = rsqrt(e, b.fadd(mean, eps))

        def write(k: Value, lanes: int) -> None:
            value = b.fmul(e.load(x, settings["x"], k, lanes), e.spread(factor, lanes))
            by = e.load(weight, settings["weight"], k, lanes)
            if settings["offset"]:
                by = b.fadd(by, e.spread(offset, lanes))
            elif not settings["round_last"]:
                value = e.rounded(value, settings["x"])
            e.store(out, settings["out"], k, b.fmul(value, by))

        e.each(I64(0), width, write)

    _rows(e, settings, row)


def layer_norm(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `_rows`; weight, eps, bias."""
    b = e.b
    weight, eps, bias = e.slot(7, POINTER), _float(e, 8), e.slot(9, POINTER)

    def row(x: Value, out: Value, width: Value) -> None:
        count = b.sitofp(width, F32)
        mean = b.fdiv(e.sum(I64(0), width, lambda k, lanes: e.load(x, settings["x"], k, lanes)), count)

        def centred(k: Value, lanes: int) -> Value:
            return b.fsub(e.load(x, settings["x"], k, lanes), e.spread(mean, lanes))

        def square(k: Value, lanes: int) -> Value:
            value = centred(k, lanes)
            return b.fmul(value, value)

        factor = rsqrt(e, b.fadd(b.fdiv(e.sum(I64(0), width, square), count), eps))

        def write(k: Value, lanes: int) -> None:
            value = b.fmul(centred(k, lanes), e.spread(factor, lanes))
            by, term = (e.load(place, settings["weight"], k, lanes) for place in (weight, bias))
            e.store(out, settings["out"], k, e.multiply_add(value, by, term))

        e.each(I64(0), width, write)

    _rows(e, settings, row)


def softmax(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: those of `_rows`."""
    b = e.b

    def row(x: Value, out: Value, width: Value) -> None:
        top = Cell(b, F32, real(float("-inf")))
        with e.loop(I64(0), width) as k:
            top.set(maximum(e, top.get(), e.load(x, settings["x"], k)))
        largest = top.get()

        def share(k: Value, lanes: int) -> Value:
            return exp(e, b.fsub(e.load(x, settings["x"], k, lanes), e.spread(largest, lanes)), is_below=True)

        factor = b.fdiv(real(1.0), e.sum(I64(0), width, share))
        e.each(
            I64(0),
            width,
            lambda k, lanes: e.store(out, settings["out"], k, b.fmul(share(k, lanes), e.spread(factor, lanes))),
        )

    _rows(e, settings, row)


def _rows(e: Emitter, settings: Mapping[str, Any], row: Callable[[Value, Value, Value], None]) -> None:
    """Slots: x, [outer count, outer stride, inner count, inner stride] of its rows, out, dense, width."""
    b = e.b
    x, out = e.slot(0, POINTER), e.slot(5, POINTER)
    outer, outer_stride, inner, inner_stride, width = (e.slot(at, I64) for at in (1, 2, 3, 4, 6))
    begin, end = e.share(b.mul(outer, inner))
    with e.loop(begin, end) as number:
        first, second = b.udiv(number, inner), b.urem(number, inner)
        at = b.add(b.mul(first, outer_stride), b.mul(second, inner_stride))
        row(e.at(x, settings["x"], at), e.at(out, settings["out"], b.mul(number, width)), width)
    e.finish()


def _float(e: Emitter, at: int) -> Value:
    return e.b.fptrunc(e.slot(at, F64), F32)
