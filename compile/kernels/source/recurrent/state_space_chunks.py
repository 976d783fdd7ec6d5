"""The state space in chunks: what a chunk of tokens needs besides the state (Dao and Gu 2024, "Transformers are SSMs",
section 6)."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.exact_products import exact_product
from bringup.compile.kernels.source.recurrent.sequences import chunk_of


@triton.jit
def state_space_chunks(
    q_NGK, k_NGK, decay_NH, starts, scores_SGCC, factors_SHFC,
    B: tl.constexpr, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, C: tl.constexpr, ENDS: tl.constexpr,
    Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_HEAD: tl.constexpr, D_ROW: tl.constexpr,
    D_HEAD: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: slots of chunks, G. A program has the C tokens of a chunk, one key head and its R value heads.

    `scores` are q_i · k_j of all tokens i and j. `factors` are the decay of the token after each, and as exp of sums of
    decays those since the chunk began, those to its end, and that of the chunk, the last in its first element. Past the
    end of a sequence, decays are 0.

    dtypes: q and k bfloat16; decay float32, bfloat16 or float16; the results float32. BK: K, rounded up to a power of
    two. BR: value heads at a time. ENDS: B, rounded up to a power of two. Bytes: each operand and each result once.
    Operations: 2 · C · K for each token and key head.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    slot, g = tl.program_id(0), tl.program_id(1)
    first, count = chunk_of(starts, slot, B, C, ENDS)
    if count <= 0:
        return
    at, at_k, at_r = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BR)
    own = at < count
    n = first + at
    part = own[:, None] & (at_k < K)[None, :]
    q = tl.load(q_NGK + g * Q_HEAD + n[:, None] * Q_ROW + at_k[None, :], mask=part, other=0.0)
    k = tl.load(k_NGK + g * K_HEAD + n[:, None] * K_ROW + at_k[None, :], mask=part, other=0.0)
    square = (slot.to(tl.int64) * (H // R) + g) * C * C + at[:, None] * C + at[None, :]
    tl.store(scores_SGCC + square, exact_product(q, tl.trans(k), None))
    for r in range(0, R, BR):
        of_r, h = r + at_r < R, g * R + r + at_r
        place = decay_NH + n[:, None] * D_ROW + h[None, :] * D_HEAD
        decay = tl.load(place, mask=own[:, None] & of_r[None, :], other=0.0).to(tl.float32)
        after = (at + 1 < count) & (at + 1 < C)
        next_decay = tl.load(place + D_ROW, mask=after[:, None] & of_r[None, :], other=0.0).to(tl.float32)
        heads = factors_SHFC + (slot.to(tl.int64) * H + h) * 4 * C
        factors = heads[None, :] + at[:, None]
        tl.store(factors, next_decay, mask=of_r[None, :])
        tl.store(factors + C, tl.exp(tl.cumsum(decay, 0)), mask=of_r[None, :])
        tl.store(factors + 2 * C, tl.exp(tl.cumsum(next_decay, 0, reverse=True)), mask=of_r[None, :])
        tl.store(heads + 3 * C, tl.exp(tl.sum(decay, 0)), mask=of_r)
