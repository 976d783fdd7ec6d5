"""Scores by which keys are selected: the sum over heads of weight · relu(query · key)."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def index_scores(
    q_NHD,
    k_BLD,
    weights_NH,
    starts,
    out_NL,
    B: tl.constexpr,
    L: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    Q_ROW: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_SEQUENCE: tl.constexpr,
    K_ROW: tl.constexpr,
    WEIGHT_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    KEYS: tl.constexpr,
    ENDS: tl.constexpr,
    WIDE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid [ceil(L / KEYS), N]. HEADS, CHANNELS and ENDS are H, D and B, rounded up to powers of two.

    `starts` [B + 1] has the first token of each sequence; if it is None, token n is that of sequence n. Padding reads
    the keys of the last sequence.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    DOT: tl.constexpr = tl.float32 if WIDE else q_NHD.dtype.element_ty
    token = tl.program_id(1).to(tl.int64)
    sequence = token
    if starts is not None:
        at = tl.arange(0, ENDS)
        ends = tl.load(starts + 1 + at, mask=at < B, other=9223372036854775807)
        sequence = tl.minimum(tl.sum((ends <= token).to(tl.int32), 0), B - 1).to(tl.int64)
    head = tl.arange(0, HEADS)
    channel = tl.arange(0, CHANNELS)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    q_place = q_NHD + token * Q_ROW + head[:, None] * Q_HEAD + channel[None, :]
    q = tl.load(q_place, mask=(head < H)[:, None] & (channel < D)[None, :], other=0.0).to(DOT)
    k_place = k_BLD + sequence * K_SEQUENCE + key[None, :].to(tl.int64) * K_ROW + channel[:, None]
    k = tl.load(k_place, mask=(key < L)[None, :] & (channel < D)[:, None], other=0.0).to(DOT)
    weights = tl.load(weights_NH + token * WEIGHT_ROW + head, mask=head < H, other=0.0).to(tl.float32)
    products = tl.maximum(tl.dot(q, k, input_precision="ieee"), 0.0)
    tl.store(out_NL + token * L + key, tl.sum(products * weights[:, None], 0), mask=key < L)
