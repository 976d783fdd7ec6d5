"""Causal attention of packed prompts over caches: many queries for each sequence, one sequence after the other.

H query heads to G key heads. The caches contain the keys of these tokens and of earlier steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.attention_parts import (
    INFINITY,
    channels,
    finished,
    first_key,
    first_row,
    is_near,
    scored,
    shares_of,
)
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def with_tile(
    q1, q2, k_SGK, v_SGV, position, start, begin, end, group, sequence, block_table, rows, chosen, slopes, scale,
    top, total, mixed,
    K: tl.constexpr, V: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, V1: tl.constexpr,
    K_ROW: tl.constexpr, K_HEAD: tl.constexpr, V_ROW: tl.constexpr, V_HEAD: tl.constexpr, TABLE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, RING: tl.constexpr, SOFTCAP: tl.constexpr, KEYS: tl.constexpr,
    DOT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the KEYS keys from position `start` to the running softmax. Returns (top, total, mixed).

    Without MASKED, all queries see all of these keys. `chosen` [QUERIES, 1] are the rows of `selected`, or None.
    """
    key = start + tl.arange(0, KEYS)
    is_row = None
    is_column = None
    if MASKED:
        is_key = (key >= begin) & (key < end)
        is_row = is_key[:, None]
        is_column = is_key[None, :]
    row = first_row(start, sequence, block_table, rows, True, TABLE, RING)
    at = tl.arange(0, KEYS)
    k_rows = k_SGK + row * K_ROW + group * K_HEAD + at[None, :] * K_ROW
    c1 = tl.arange(0, K1)
    products = tl.dot(q1, channels(k_rows, is_column, c1[:, None], K, 0, K1, DOT), input_precision="ieee")
    if K2:
        k2 = channels(k_rows, is_column, tl.arange(0, K2)[:, None], K, K1, K2, DOT)
        products = tl.dot(q2, k2, products, input_precision="ieee")
    distance = key[None, :] - position[:, None]
    scores = scored(products, distance, slopes, scale, SOFTCAP)
    if MASKED:
        seen = (distance <= 0) & is_column
        if WINDOW is not None:
            seen = seen & is_near(distance, position, WINDOW, CHUNKED)
        if chosen is not None:
            seen = seen & (tl.load(chosen + key[None, :], mask=seen, other=0) != 0)
        scores = tl.where(seen, scores, -INFINITY)
    shares, top, factor = shares_of(scores, top)
    total = total * factor + tl.sum(shares, 1)
    v_rows = v_SGV + row * V_ROW + group * V_HEAD + at[:, None] * V_ROW
    values = channels(v_rows, is_row, tl.arange(0, V1)[None, :], V, 0, V1, DOT)
    return top, total, tl.dot(shares.to(DOT), values, mixed * factor[:, None], input_precision="ieee")


@triton.jit
def attention_prefill(
    q_NHK,
    k_SGK,
    v_SGV,
    positions_N,
    starts,
    block_table_BP,
    rows_B,
    lengths_B,
    out_NHV,
    scale,
    sinks_H,
    slopes_H,
    selected_NL,
    N: tl.constexpr,
    B: tl.constexpr,
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
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    TWICE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid [ceil(N / QUERIES), H, B + 1]. A program has QUERIES tokens of a sequence, one head, and tiles of KEYS keys.

    The last index of the third axis writes zeros for padding, which starts at token `starts[B]`. The other parameters
    are those of `attention_decode`. The programs with the most keys start first. With TWICE, tiles of
    keys that all queries see are computed without masks, then the others, in a loop of their own.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    group = head // (H // G)
    DOT: tl.constexpr = tl.float32 if WIDE else q_NHK.dtype.element_ty
    first = tl.load(starts + sequence).to(tl.int32)
    last = tl.load(starts + sequence + 1, mask=sequence < B, other=N).to(tl.int32)
    token = first + (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES + tl.arange(0, QUERIES)
    is_token = token < last
    cv = tl.arange(0, V1)
    is_value = is_token[:, None] & (cv < V)[None, :]
    place = out_NHV + (token.to(tl.int64) * H + head)[:, None] * V + cv[None, :]
    top = tl.full((QUERIES,), -INFINITY, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, V1), tl.float32)
    if sequence == B:
        tl.store(place, mixed.to(out_NHV.dtype.element_ty), mask=is_value)
        return
    if tl.min(token, 0) >= last:
        return

    position = tl.load(positions_N + token, mask=is_token, other=-1).to(tl.int32)
    end = tl.minimum(tl.max(position, 0) + 1, LENGTH)
    begin = 0
    oldest = 0
    if RING is not None:
        end = tl.max(position, 0) + 1
        oldest = tl.maximum(oldest, tl.load(lengths_B + sequence).to(tl.int32) - RING)
        begin = oldest
    if WINDOW is not None:
        lowest = tl.min(tl.where(is_token, position, 2147483647), 0)
        begin = tl.maximum(begin, first_key(lowest, WINDOW, CHUNKED))
    sinks = None
    slopes = None
    if sinks_H is not None:
        sinks = tl.load(sinks_H + head).to(tl.float32) + tl.zeros((QUERIES,), tl.float32)
    if slopes_H is not None:
        slopes = tl.load(slopes_H + head).to(tl.float32) + tl.zeros((QUERIES,), tl.float32)

    q_rows = q_NHK + token.to(tl.int64)[:, None] * Q_ROW + head * Q_HEAD
    q1 = channels(q_rows, is_token[:, None], tl.arange(0, K1)[None, :], K, 0, K1, DOT)
    q2 = None
    if K2:
        q2 = channels(q_rows, is_token[:, None], tl.arange(0, K2)[None, :], K, K1, K2, DOT)
    chosen = None
    if selected_NL is not None:
        chosen = selected_NL + token.to(tl.int64)[:, None] * LENGTH
    masked = begin // KEYS * KEYS
    if TWICE and WINDOW is None and RING is None and selected_NL is None:
        lowest = tl.min(tl.where(is_token, position, 2147483647), 0)
        masked = tl.minimum(lowest + 1, end) // KEYS * KEYS
        for start in range(0, masked, KEYS):
            top, total, mixed = with_tile(
                q1, q2, k_SGK, v_SGV, position, start, begin, end, group, sequence, block_table_BP, rows_B, chosen,
                slopes, scale, top, total, mixed, K, V, K1, K2, V1, K_ROW, K_HEAD, V_ROW, V_HEAD, TABLE,
                WINDOW, CHUNKED, RING, SOFTCAP, KEYS, DOT, False,
            )  # fmt: skip
    for start in range(masked, end, KEYS):
        top, total, mixed = with_tile(
            q1, q2, k_SGK, v_SGV, position, start, begin, end, group, sequence, block_table_BP, rows_B, chosen,
            slopes, scale, top, total, mixed, K, V, K1, K2, V1, K_ROW, K_HEAD, V_ROW, V_HEAD, TABLE,
            WINDOW, CHUNKED, RING, SOFTCAP, KEYS, DOT, True,
        )  # fmt: skip
    tl.store(place, finished(mixed, top, total, sinks).to(out_NHV.dtype.element_ty), mask=is_value)
