# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A convolution of each channel over the tokens of a sequence; see `bringup.graphs.ops.recurrent.causal_conv`.

N tokens of the step · B sequences · C channels · K taps · T = K - 1 tokens in a state
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.compile.llvm.ir.dtypes import I64, POINTER
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.llvm.kernels.recurrent.sequences import Sequence, padding, sequences
from bringup.compile.llvm.select.sizes import CONV_CHANNELS, CONV_SHARE


def causal_conv(e: Emitter, settings: Mapping[str, Any]) -> None:
    """Slots: x, its stride of tokens; weight, dense; bias; state, dense; starts; rows; lengths; out, dense; N; B; C;
    certain.

    A thread computes some channels of every token, so it shifts what no other thread reads. Scratch memory: the weights
    of a block of channels, transposed, and zeros, which stand for the tokens before a sequence. Narrow blocks would be
    slow: in a matrix of thousands of columns each row is in another page, and all may be in the same cache sets.
    """
    b, dtype, taps = e.b, settings["x"], settings["taps"]
    x, weight, bias, state, starts, rows, lengths, out = (e.slot(at, POINTER) for at in (0, 2, 3, 4, 5, 6, 7, 8))
    stride, tokens, count, channels = (e.slot(at, I64) for at in (1, 9, 10, 11))
    certain = e.slot(12, POINTER) if settings["proposals"] else None
    zeros = e.at(e.scratch, "float32", I64(taps * CONV_CHANNELS))
    e.each(I64(0), I64(CONV_CHANNELS), lambda c, lanes: e.store(zeros, dtype, c, e.zero(lanes)))
    begin, end = e.share(channels, CONV_SHARE)
    with e.loop(begin, end, CONV_CHANNELS) as first:
        width = e.minimum(I64(CONV_CHANNELS), b.sub(end, first))
        with e.loop(I64(0), width) as c:
            for k in range(taps):
                place = b.add(b.mul(b.add(first, c), I64(taps)), I64(k))
                e.store(
                    e.scratch, "float32", b.add(I64(k * CONV_CHANNELS), c), e.load(weight, settings["weight"], place)
                )

        def row_of(sequence: Sequence, from_start: Value, first: Value = first) -> Value:
            """The address of the block's channels, of a token from -T on, counted from the sequence's first."""
            own = b.add(sequence.first, b.select(b.icmp_signed("<", from_start, I64(0)), I64(0), from_start))
            here = e.at(x, dtype, b.add(b.mul(own, stride), first))
            at = b.add(b.mul(sequence.row, I64(taps - 1)), b.add(from_start, I64(taps - 1)))
            before = e.at(state, dtype, b.add(b.mul(at, channels), first))
            before = b.select(sequence.is_new, zeros, before)
            return b.select(b.icmp_signed("<", from_start, I64(0)), before, here)

        with sequences(e, starts, rows, lengths, certain, count) as sequence:
            with e.loop(sequence.first, sequence.end) as token:
                at = b.sub(token, sequence.first)
                seen = [row_of(sequence, b.sub(at, I64(taps - 1 - k))) for k in range(taps)]
                place = e.at(out, dtype, b.add(b.mul(token, channels), first))

                def result(
                    c: Value, lanes: int, seen: list[Value] = seen, place: Value = place, first: Value = first
                ) -> None:
                    total = e.zero(lanes)
                    for k, row in enumerate(seen):
                        factor = e.load(e.scratch, "float32", b.add(I64(k * CONV_CHANNELS), c), lanes)
                        total = e.multiply_add(factor, e.load(row, dtype, c, lanes), total)
                    if settings["bias"]:
                        total = b.fadd(total, e.load(bias, settings["bias"], b.add(first, c), lanes))
                    e.store(place, dtype, c, total)

                e.each(I64(0), width, result)
            with e.loop(I64(0), I64(taps - 1)) as j:  # in this order, a row is read before it is overwritten
                from_start = b.sub(b.add(sequence.certain, j), I64(taps - 1))
                source = row_of(sequence, from_start)
                at = b.add(b.mul(sequence.row, I64(taps - 1)), j)
                place = e.at(state, dtype, b.add(b.mul(at, channels), first))
                e.each(
                    I64(0), width,
                    lambda c, lanes, source=source, place=place: e.store(
                        place, dtype, c, e.load(source, dtype, c, lanes), is_rounded=True
                    ),
                )  # fmt: skip
        with padding(e, starts, count, tokens) as token:
            place = e.at(out, dtype, b.add(b.mul(token, channels), first))
            e.each(I64(0), width, lambda c, lanes, place=place: e.store(place, dtype, c, real(0.0, e.zero(lanes))))
    e.finish()
