"""Attention of one query a sequence over caches, H query heads to G key heads, the keys split over programs.

The splits of a sequence's heads are combined, in their order, by the program that is ready last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.attention_parts import (
    INFINITY,
    channels,
    finished,
    first_row,
    scored,
    shares_of,
)


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
    RING: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid [SPLITS, G · ceil(H / G / HEADS), B]; a program has HEADS query heads of a key head, KEYS keys at a time.

    Channels of keys are taken as K1 + K2, powers of 2, values as V1. LENGTH keys of a sequence fit the caches. WIDE:
    products of float32 numbers. `mixed`, `top`, `total` are memory for the splits; `count` int32 [B, grid's second
    axis] is zero before and after. Pointers that are not needed are None.
    """
    split = tl.program_id(0)
    tile = tl.program_id(1)
    sequence = tl.program_id(2)
    DOT: tl.constexpr = tl.float32 if WIDE else q_NHK.dtype.element_ty
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
        begin = tl.maximum(begin, position + 1 - WINDOW)
    if RING is not None:
        begin = tl.maximum(begin, tl.load(lengths_B + sequence).to(tl.int32) - RING)
        end = position + 1
    first_tile = begin // KEYS
    each = tl.cdiv(tl.cdiv(end, KEYS) - first_tile, SPLITS)
    low = (first_tile + split * each) * KEYS
    high = tl.minimum(low + each * KEYS, end)

    sinks = None
    slopes = None
    if sinks_H is not None:
        sinks = tl.load(sinks_H + head, mask=is_head, other=0.0).to(tl.float32)
    if slopes_H is not None:
        slopes = tl.load(slopes_H + head, mask=is_head, other=0.0).to(tl.float32)

    c1 = tl.arange(0, K1)
    q_heads = q_NHK + sequence * Q_ROW + head[:, None] * Q_HEAD
    q1 = channels(q_heads, is_head[:, None], c1[None, :], K, 0, K1, DOT)
    if K2:
        c2 = tl.arange(0, K2)
        q2 = channels(q_heads, is_head[:, None], c2[None, :], K, K1, K2, DOT)
    cv = tl.arange(0, V1)
    at = tl.arange(0, KEYS)

    top = tl.full((HEADS,), -INFINITY, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    mixed = tl.zeros((HEADS, V1), tl.float32)
    for start in range(low, high, KEYS):
        key = start + at
        seen = (key >= begin) & (key < high)
        row = first_row(start, sequence, block_table_BP, rows_B, TABLE, RING)
        k_rows = k_SGK + row * K_ROW + group * K_HEAD + at[None, :] * K_ROW
        products = tl.dot(q1, channels(k_rows, seen[None, :], c1[:, None], K, 0, K1, DOT), input_precision="ieee")
        if K2:
            k2 = channels(k_rows, seen[None, :], c2[:, None], K, K1, K2, DOT)
            products = tl.dot(q2, k2, products, input_precision="ieee")
        scores = scored(products, (key - position)[None, :], slopes, scale, SOFTCAP)
        if chosen_BL is not None:
            seen = seen & (tl.load(chosen_BL + sequence.to(tl.int64) * LENGTH + key, mask=seen, other=0) != 0)
        scores = tl.where(seen[None, :], scores, -INFINITY)
        shares, top, factor = shares_of(scores, top)
        total = total * factor + tl.sum(shares, 1)
        v_rows = v_SGV + row * V_ROW + group * V_HEAD + at[:, None] * V_ROW
        values = channels(v_rows, (key < high)[:, None], cv[None, :], V, 0, V1, DOT)
        mixed = tl.dot(shares.to(DOT), values, mixed * factor[:, None], input_precision="ieee")

    of_heads = sequence * H + head
    is_value = is_head[:, None] & (cv < V)[None, :]
    place = out_BHV + of_heads[:, None] * V + cv[None, :]
    if SPLITS == 1:
        tl.store(place, finished(mixed, top, total, sinks).to(out_BHV.dtype.element_ty), mask=is_value)
    else:
        part = of_heads * SPLITS + split
        tl.store(mixed_BHSV + part[:, None] * V + cv[None, :], mixed, mask=is_value)
        tl.store(top_BHS + part, top, mask=is_head)
        tl.store(total_BHS + part, total, mask=is_head)
        counter = count + sequence * tl.num_programs(1) + tile
        tl.debug_barrier()  # all threads' stores come before the release
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
            tl.debug_barrier()
            top = tl.full((HEADS,), -INFINITY, tl.float32)
            total = tl.zeros((HEADS,), tl.float32)
            mixed = tl.zeros((HEADS, V1), tl.float32)
            for other in range(SPLITS):
                part = of_heads * SPLITS + other
                top_of = tl.load(top_BHS + part, mask=is_head, other=-INFINITY)
                total_of = tl.load(total_BHS + part, mask=is_head, other=0.0)
                mixed_of = tl.load(mixed_BHSV + part[:, None] * V + cv[None, :], mask=is_value, other=0.0)
                new_top = tl.maximum(top, top_of)
                base = tl.where(new_top == -INFINITY, 0.0, new_top)
                total = total * tl.exp2(top - base) + total_of * tl.exp2(top_of - base)
                mixed = mixed * tl.exp2(top - base)[:, None] + mixed_of * tl.exp2(top_of - base)[:, None]
                top = new_top
            tl.store(place, finished(mixed, top, total, sinks).to(out_BHV.dtype.element_ty), mask=is_value)
            tl.store(counter, 0)
