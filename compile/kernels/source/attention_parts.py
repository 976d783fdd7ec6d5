"""Functions shared by attention for decode and prefill: rows of the caches, scores, the running softmax.

Scores are multiplied by log2(e), so that the exponential is a power of 2. The running softmax of a row consists of its
largest score so far, `top`, and, relative to that, the sum of exponentials, `total`, and the weighted sum of values,
`mixed` (Milakov & Gimelshein 2018, as used in FlashAttention, Dao et al. 2022).
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
    """The row of the caches with the key at a position, int64. The keys up to the next multiple of 64 follow it.

    If RING is not None, each sequence has a ring of RING rows, number `rows[sequence]`. Otherwise its blocks are listed
    in `block_table`, which has TABLE entries for each sequence. If the array that applies is None, there is one
    sequence, which starts at row 0. `is_key` is false for a position without a key, whose block is not read.
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
    """The rows of the caches of KEYS keys from position `start`, a multiple of KEYS: (first row, offset of each key).

    Their sum is int64 [KEYS]; it is arbitrary for positions without a key. `is_key` [KEYS]: which positions have a key;
    `is_any`: whether any has.
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
def first_key(position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first key that the query at a position attends to (`graphs.ops.attention.first_key`); it may be negative."""
    return position - position % WINDOW if CHUNKED else position + 1 - WINDOW


@triton.jit
def is_near(distance, position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """Which keys [rows, keys] are not before the first one of their query. `position` [rows] is that of the queries."""
    return distance >= -(position % WINDOW)[:, None] if CHUNKED else distance > -WINDOW


@triton.jit
def scored(products, distance, slopes, scale, SOFTCAP: tl.constexpr):
    """Scores [rows, keys] from products of queries and keys, times log2(e). `slopes` [rows] are those of ALiBi.

    `distance`: position of the key minus that of the query. SOFTCAP limits the scores with tanh, if not None.
    """
    if SOFTCAP is None:
        scores = products * (scale * LOG2E)
    else:
        scores = libdevice.tanh(products * (scale / SOFTCAP)) * (SOFTCAP * LOG2E)
    if slopes is not None:
        scores += slopes[:, None] * LOG2E * distance.to(tl.float32)
    return scores


@triton.jit
def shares_of(scores, top):
    """The exponentials of a tile's scores relative to the new largest score, that score, and the factor of old sums."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -INFINITY, 0.0, new_top)  # no key seen so far
    return tl.exp2(scores - base[:, None]), new_top, tl.exp2(top - base)


@triton.jit
def finished(mixed, top, total, sinks):
    """The weighted mean of values; 0 for rows without keys. `sinks` [rows]: scores of an added key with the value 0."""
    if sinks is not None:
        new_top = tl.maximum(top, sinks * LOG2E)
        factor = tl.exp2(top - new_top)
        mixed *= factor[:, None]
        total = total * factor + tl.exp2(sinks * LOG2E - new_top)
    return mixed / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit
def as_operand(tile):
    """The same tile, in the layout of a product's operand from here on.

    A tile that was only loaded is converted, through shared memory, at the product: after the wait, if that is in
    between. A sum is computed in the operand's layout, so the conversion comes before it. Tests look for it.
    """
    return tile + tl.zeros(tile.shape, tile.dtype)


@triton.jit
def channels(
    pointer, valid, column, SIZE: tl.constexpr, FIRST: tl.constexpr, BLOCK_OF: tl.constexpr, DOT: tl.constexpr
):
    """A tile of BLOCK_OF channels of SIZE, starting at FIRST, in the dtype DOT. Elements that do not exist are 0.

    `valid`: which rows exist, None for all.
    """
    if FIRST + BLOCK_OF > SIZE:
        valid = FIRST + column < SIZE if valid is None else valid & (FIRST + column < SIZE)
    if valid is None:
        tile = tl.load(pointer + FIRST + column)
    else:
        tile = tl.load(pointer + FIRST + column, mask=valid, other=0.0)
    return tile.to(DOT)
