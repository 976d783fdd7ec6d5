"""Attention of one query for each sequence over caches, H query heads to G key heads, with keys split over programs.

The program that finishes last combines the splits of its heads, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.attention_parts import (
    INFINITY,
    as_operand,
    channels,
    finished,
    first_key,
    first_row,
    rows_of_tile,
    scored,
    shares_of,
)
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def with_tile(
    q1, q2, k1, k2, values, distance, seen, slopes, scale, top, total, mixed,
    K2: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Adds a tile of keys to the running softmax. Returns (top, total, mixed).

    `distance`: position of each key minus that of the query.
    """
    products = tl.dot(q1, k1, input_precision="ieee")
    if K2:
        products = tl.dot(q2, k2, products, input_precision="ieee")
    scores = tl.where(seen[None, :], scored(products, distance[None, :], slopes, scale, SOFTCAP), -INFINITY)
    shares, top, factor = shares_of(scores, top)
    total = total * factor + tl.sum(shares, 1)
    return top, total, tl.dot(shares.to(values.dtype), values, mixed * factor[:, None], input_precision="ieee")


@triton.jit
def newest_alone(q1, q2, k1, k2, values, seen, slopes, scale, HEADS: tl.constexpr, K2: tl.constexpr,
                 SOFTCAP: tl.constexpr):  # fmt: skip
    """The running softmax with only the key at the position of the query: (top, total, mixed).

    `k1` [1, K1], `k2` [1, K2] and `values` [1, V1] are its channels. `seen`: whether it is in this split.
    """
    products = tl.sum(q1.to(tl.float32) * k1.to(tl.float32), 1, keep_dims=True)
    if K2:
        products += tl.sum(q2.to(tl.float32) * k2.to(tl.float32), 1, keep_dims=True)
    scores = scored(products, tl.zeros((1, 1), tl.int32), slopes, scale, SOFTCAP)
    total = tl.where(seen, 1.0, 0.0) + tl.zeros((HEADS,), tl.float32)
    return tl.max(tl.where(seen, scores, -INFINITY), 1), total, total[:, None] * values.to(tl.float32)


@triton.jit
def attention_decode(
    q_NHK,
    k_SGK,
    v_SGV,
    positions_B,
    block_table_BP,
    rows_B,
    lengths_B,
    out_BHV,
    scale,
    sinks_H,
    slopes_H,
    chosen_BL,
    mixed_BHSV,
    top_BHS,
    total_BHS,
    count,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    V1: tl.constexpr,
    Q_ROW: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_ROW: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_ROW: tl.constexpr,
    V_HEAD: tl.constexpr,
    TABLE: tl.constexpr,
    LENGTH: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    RING: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    LEAST: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    KNOWN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid [SPLITS, G · ceil(H / G / HEADS), B]. A program has HEADS query heads of a key head, and tiles of KEYS keys.

    Channels of keys are in parts of K1 and K2, powers of two; those of values are padded to V1. The caches have room
    for LENGTH keys of a sequence. A split has at least LEAST tiles of keys, so a short sequence has few splits. WIDTH:
    SPLITS, rounded up to a power of two. WIDE: products are computed in float32. `mixed`, `top` and `total` are memory
    for the splits; `count`, int32 [B, second axis of the grid], is zero before and after. Unused pointers are None.
    KNOWN: earlier launches write only one row of the caches, that of the newest token. If launches start early too,
    the other rows of the first tile are fetched before the wait, and the softmax begins with the newest key alone.
    """
    let_next_start(EARLY)
    if not KNOWN:
        wait_for_last(EARLY)
    split = tl.program_id(0)
    tile = tl.program_id(1)
    sequence = tl.program_id(2)
    DOT: tl.constexpr = tl.float32 if WIDE else q_NHK.dtype.element_ty
    FIRST: tl.constexpr = KNOWN and EARLY
    DONE: tl.constexpr = KEYS if FIRST else 0
    EACH: tl.constexpr = H // G
    TILES: tl.constexpr = (EACH + HEADS - 1) // HEADS
    group = tile // TILES
    within = (tile % TILES) * HEADS + tl.arange(0, HEADS)
    is_head = within < EACH
    head = group * EACH + within

    position = tl.load(positions_B + sequence).to(tl.int32)
    begin = 0
    end = tl.minimum(position + 1, LENGTH)
    if WINDOW is not None:
        begin = tl.maximum(begin, first_key(position, WINDOW, CHUNKED))
    if RING is not None:
        begin = tl.maximum(begin, tl.load(lengths_B + sequence).to(tl.int32) - RING)
        end = position + 1
    first_tile = begin // KEYS
    tiles = tl.cdiv(end, KEYS) - first_tile
    each = tl.maximum(tl.cdiv(tiles, SPLITS), LEAST)
    used = tl.maximum(tl.cdiv(tiles, each), 1)  # splits
    low = (first_tile + split * each) * KEYS
    high = tl.minimum(low + each * KEYS, end)

    sinks = None
    slopes = None
    if sinks_H is not None:
        sinks = tl.load(sinks_H + head, mask=is_head, other=0.0).to(tl.float32)
    if slopes_H is not None:
        slopes = tl.load(slopes_H + head, mask=is_head, other=0.0).to(tl.float32)

    c1 = tl.arange(0, K1)
    cv = tl.arange(0, V1)
    at = tl.arange(0, KEYS)
    first2 = None
    if FIRST:
        key = low + at
        seen = (key >= begin) & (key < high)
        is_old = seen & (key < position)
        row, after = rows_of_tile(low, low < high, seen, sequence, block_table_BP, rows_B, KEYS, TABLE, RING)
        k_rows = k_SGK + row * K_ROW + group * K_HEAD + after[None, :] * K_ROW
        v_rows = v_SGV + row * V_ROW + group * V_HEAD + after[:, None] * V_ROW
        first1 = as_operand(channels(k_rows, is_old[None, :], c1[:, None], K, 0, K1, DOT))
        if K2:
            first2 = as_operand(channels(k_rows, is_old[None, :], tl.arange(0, K2)[:, None], K, K1, K2, DOT))
        first_values = as_operand(channels(v_rows, is_old[:, None], cv[None, :], V, 0, V1, DOT))
    if KNOWN:
        wait_for_last(EARLY)
    if split >= used:
        return

    q_heads = q_NHK + sequence * Q_ROW + head[:, None] * Q_HEAD
    q1 = channels(q_heads, is_head[:, None], c1[None, :], K, 0, K1, DOT)
    q2 = None
    if K2:
        c2 = tl.arange(0, K2)
        q2 = channels(q_heads, is_head[:, None], c2[None, :], K, K1, K2, DOT)
    if chosen_BL is not None:
        chosen = chosen_BL + sequence.to(tl.int64) * LENGTH
    if FIRST:
        is_new = (position >= low) & (position < tl.minimum(low + KEYS, high))
        newest = first_row(position, sequence, block_table_BP, rows_B, is_new, TABLE, RING)
        k_row = k_SGK + newest * K_ROW + group * K_HEAD
        new1 = channels(k_row, is_new, c1[None, :], K, 0, K1, DOT)
        new2 = None
        if K2:
            new2 = channels(k_row, is_new, c2[None, :], K, K1, K2, DOT)
        new_values = channels(v_SGV + newest * V_ROW + group * V_HEAD, is_new, cv[None, :], V, 0, V1, DOT)
        if chosen_BL is not None:
            is_old = is_old & (tl.load(chosen + key, mask=is_old, other=0) != 0)
            is_new = is_new & (tl.load(chosen + position, mask=is_new, other=0) != 0)
        top, total, mixed = newest_alone(q1, q2, new1, new2, new_values, is_new, slopes, scale, HEADS, K2, SOFTCAP)
        top, total, mixed = with_tile(q1, q2, first1, first2, first_values, key - position, is_old, slopes, scale,
                                      top, total, mixed, K2, SOFTCAP)  # fmt: skip
    else:
        top = tl.full((HEADS,), -INFINITY, tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        mixed = tl.zeros((HEADS, V1), tl.float32)
    for start in range(low + DONE, high, KEYS):
        key = start + at
        seen = (key >= begin) & (key < high)
        row, after = rows_of_tile(start, True, key < high, sequence, block_table_BP, rows_B, KEYS, TABLE, RING)
        k_rows = k_SGK + row * K_ROW + group * K_HEAD + after[None, :] * K_ROW
        v_rows = v_SGV + row * V_ROW + group * V_HEAD + after[:, None] * V_ROW
        k1 = channels(k_rows, seen[None, :], c1[:, None], K, 0, K1, DOT)
        k2 = None
        if K2:
            k2 = channels(k_rows, seen[None, :], c2[:, None], K, K1, K2, DOT)
        values = channels(v_rows, (key < high)[:, None], cv[None, :], V, 0, V1, DOT)
        if chosen_BL is not None:
            seen = seen & (tl.load(chosen + key, mask=seen, other=0) != 0)
        top, total, mixed = with_tile(q1, q2, k1, k2, values, key - position, seen, slopes, scale, top, total, mixed,
                                      K2, SOFTCAP)  # fmt: skip

    of_heads = sequence * H + head
    is_value = is_head[:, None] & (cv < V)[None, :]
    place = out_BHV + of_heads[:, None] * V + cv[None, :]
    if SPLITS == 1 or used == 1:
        tl.store(place, finished(mixed, top, total, sinks).to(out_BHV.dtype.element_ty), mask=is_value)
    else:
        part = of_heads * SPLITS + split
        tl.store(mixed_BHSV + part[:, None] * V + cv[None, :], mixed, mask=is_value)
        tl.store(top_BHS + part, top, mask=is_head)
        tl.store(total_BHS + part, total, mask=is_head)
        counter = count + sequence * tl.num_programs(1) + tile
        tl.debug_barrier()  # all threads' stores come before the release
        if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
            tl.debug_barrier()
            other = tl.arange(0, WIDTH)
            is_part = is_head[:, None] & (other < used)[None, :]
            parts = of_heads[:, None] * SPLITS + other[None, :]
            tops = tl.load(top_BHS + parts, mask=is_part, other=-INFINITY)
            totals = tl.load(total_BHS + parts, mask=is_part, other=0.0)
            top = tl.max(tops, 1)
            factors = tl.exp2(tops - tl.where(top == -INFINITY, 0.0, top)[:, None])
            total = tl.sum(totals * factors, 1)
            mixed = tl.zeros((HEADS, V1), tl.float32)
            for number in tl.range(0, used, loop_unroll_factor=4):
                part = of_heads * SPLITS + number
                mixed_of = tl.load(mixed_BHSV + part[:, None] * V + cv[None, :], mask=is_value, other=0.0)
                mixed += mixed_of * tl.sum(tl.where(other[None, :] == number, factors, 0.0), 1)[:, None]
            tl.store(place, finished(mixed, top, total, sinks).to(out_BHV.dtype.element_ty), mask=is_value)
            tl.store(counter, 0)
