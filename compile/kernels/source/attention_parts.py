"""What decode and prefill have in common: rows of the caches, scores, the running softmax.

Scores are in units of log 2, so that their exponentials are powers of 2. The running softmax of a row is its largest
score so far, `top`, and relative to that the sum of the shares, `total`, and the sum of values, `mixed` (Milakov &
Gimelshein 2018, as FlashAttention has it: Dao et al. 2022).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)  # rows of a block of the paged cache: graphs/core/step.py
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def first_row(key, sequence, block_table, rows, is_key, TABLE: tl.constexpr, RING: tl.constexpr):
    """The row of the caches that has a key by its position, int64; keys up to the next multiple of 64 follow it.

    Without `is_key` there is no such key, and row 0 stands for it.

    Of a ring of RING rows, else of a block of the sequence's TABLE entries. Without `block_table`, or without `rows`,
    there is one sequence from row 0 on.
    """
    if RING is not None:
        row = (key % RING).to(tl.int64)
        if rows is not None:
            row += tl.load(rows + sequence) * RING
    elif block_table is None:
        row = key.to(tl.int64)
    else:
        row = tl.load(block_table + sequence * TABLE + key // BLOCK, mask=is_key, other=0) * BLOCK + key % BLOCK
    return row


@triton.jit
def rows_of_tile(
    start, is_any, is_key, sequence, block_table, rows,
    KEYS: tl.constexpr, TABLE: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Rows of the caches of the keys from `start` on, a multiple of KEYS: one row, and what to add to it for each key.

    Together int64 [KEYS]; any row where no key is. `is_key` [KEYS]: where keys are, `is_any` whether there are some.
    """
    at = tl.arange(0, KEYS)
    if KEYS <= BLOCK:
        first = first_row(start, sequence, block_table, rows, is_any, TABLE, RING)
        after = at
    else:
        first = 0
        after = first_row(start + at, sequence, block_table, rows, is_key, TABLE, RING)
    return first, after


@triton.jit
def scored(products, distance, slopes, scale, SOFTCAP: tl.constexpr):
    """Scores [rows, keys] of products; `distance` is position of the key less that of the query, `slopes` [rows]."""
    if SOFTCAP is None:
        scores = products * (scale * LOG2E)
    else:
        scores = libdevice.tanh(products * (scale / SOFTCAP)) * (SOFTCAP * LOG2E)
    if slopes is not None:
        scores += slopes[:, None] * LOG2E * distance.to(tl.float32)
    return scores


@triton.jit
def shares_of(scores, top):
    """Of the keys of a tile, relative to the new largest score; that score, and the factor of the sums so far."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -INFINITY, 0.0, new_top)  # no key seen so far
    return tl.exp2(scores - base[:, None]), new_top, tl.exp2(top - base)


@triton.jit
def finished(mixed, top, total, sinks):
    """The weighted mean of values; of rows that see no key, 0. `sinks` [rows] are scores of a key without a value."""
    if sinks is not None:
        new_top = tl.maximum(top, sinks * LOG2E)
        factor = tl.exp2(top - new_top)
        mixed *= factor[:, None]
        total = total * factor + tl.exp2(sinks * LOG2E - new_top)
    return mixed / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit
def channels(
    pointer, valid, column, SIZE: tl.constexpr, FIRST: tl.constexpr, BLOCK_OF: tl.constexpr, DOT: tl.constexpr
):
    """A tile of BLOCK_OF of SIZE channels from FIRST on, 0 where there is none, in the dtype that products are of."""
    if FIRST + BLOCK_OF > SIZE:
        valid = valid & (FIRST + column < SIZE)
    return tl.load(pointer + FIRST + column, mask=valid, other=0.0).to(DOT)
