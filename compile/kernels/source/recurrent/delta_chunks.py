"""The gated delta rule in chunks: what a chunk of tokens needs besides the state (Yang et al. 2024, "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length", section 3)."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.decays import decays_between
from bringup.compile.kernels.source.recurrent.exact_products import exact_product
from bringup.compile.kernels.source.recurrent.sequences import chunk_of

BLOCK = tl.constexpr(16)  # rows of the diagonal blocks that are inverted row by row


@triton.jit
def _inverse(lower):
    """(1 + lower)⁻¹ of a strictly lower triangular matrix of two by two blocks.

    First of the diagonal blocks, row by row: row i of the inverse is that of the identity minus the sum of lower_ij
    times row j. With their inverses P and Q, and the block X below the first, the block of the inverse below it is
    -Q · X · P. All intermediate matrices are inverses of parts of the system, so no sum of large terms cancels.
    """
    block, at = tl.arange(0, 2), tl.arange(0, BLOCK)
    in_blocks = tl.reshape(lower, (2, BLOCK, 2, BLOCK))
    diagonal = block[:, None, None, None] == block[None, None, :, None]
    blocks = tl.sum(tl.where(diagonal, in_blocks, 0.0), 2)
    row = at[None, :, None]
    inverses = tl.where(row == at[None, None, :], 1.0, tl.zeros((2, BLOCK, BLOCK), tl.float32))
    for i in range(1, BLOCK):
        factors = tl.sum(tl.where(row == i, blocks, 0.0), 1)
        change = tl.sum(factors[:, :, None] * inverses, 1)
        inverses = tl.where(row == i, inverses - change[:, None, :], inverses)
    inverse = tl.reshape(tl.where(diagonal, inverses[:, :, None, :], 0.0), (2 * BLOCK, 2 * BLOCK))
    i, j = tl.arange(0, 2 * BLOCK)[:, None], tl.arange(0, 2 * BLOCK)[None, :]
    between = exact_product(inverse, tl.where((i >= BLOCK) & (j < BLOCK), lower, 0.0), None)
    inverse -= exact_product(between, inverse, None)
    return inverse


@triton.jit
def delta_chunks(
    q_NGK, k_NGK, decay_NH, beta_NH, starts, factors_SHFC, solved_SHCC, seen_SHCC,
    B: tl.constexpr, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, C: tl.constexpr, ENDS: tl.constexpr,
    Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_HEAD: tl.constexpr, D_ROW: tl.constexpr,
    D_HEAD: tl.constexpr, B_ROW: tl.constexpr, B_HEAD: tl.constexpr, SCALE: tl.constexpr, EPS: tl.constexpr,
    BK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: slots of chunks, H. A program has the C tokens of a chunk and one head.

    With the decay P_ij from token j to token i, those p since the chunk began and e to its end, q and k of length 1,
    and the strictly lower A_ij = beta_i · P_ij · k_i · k_j, `solved` is (1 + A)⁻¹ · beta, `seen` is the lower
    P_ij · q_i · k_j. `factors` are p / |k|, p / |q|, e / |k| and the decay of the chunk, the last in its first element.

    dtypes: q and k bfloat16; decay and beta float32, bfloat16 or float16; the results float32. C is 32. BK: K, rounded
    up to a power of two. ENDS: B, rounded up to a power of two. Bytes: q and k once for each of the R value heads of a
    key head; the results once. Operations: 4 · C · K and 4 · C² for each token and head.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    slot, h = tl.program_id(0), tl.program_id(1)
    first, count = chunk_of(starts, slot, B, C, ENDS)
    if count <= 0:
        return
    at, at_k = tl.arange(0, C), tl.arange(0, BK)
    own = at < count
    n = first + at
    part = own[:, None] & (at_k < K)[None, :]
    q = tl.load(q_NGK + h // R * Q_HEAD + n[:, None] * Q_ROW + at_k[None, :], mask=part, other=0.0)
    k = tl.load(k_NGK + h // R * K_HEAD + n[:, None] * K_ROW + at_k[None, :], mask=part, other=0.0)
    decay = tl.load(decay_NH + h * D_HEAD + n * D_ROW, mask=own, other=0.0).to(tl.float32)
    after = (at + 1 < count) & (at + 1 < C)
    next_decay = tl.load(decay_NH + h * D_HEAD + (n + 1) * D_ROW, mask=after, other=0.0).to(tl.float32)
    beta = tl.load(beta_NH + h * B_HEAD + n * B_ROW, mask=own, other=0.0).to(tl.float32)
    wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
    q_unit = tl.rsqrt(tl.sum(wide_q * wide_q, 1) + EPS) * SCALE
    k_unit = tl.rsqrt(tl.sum(wide_k * wide_k, 1) + EPS)
    row, column = at[:, None], at[None, :]
    apart = decays_between(next_decay, C) * k_unit[None, :]
    keys = tl.dot(k, tl.trans(k))
    lower = tl.where(row > column, (beta * k_unit)[:, None] * apart * keys, 0.0)
    place = (slot.to(tl.int64) * H + h) * C
    square = place * C + row * C + column
    seen = tl.where(row >= column, q_unit[:, None] * apart * tl.dot(q, tl.trans(k)), 0.0)
    tl.store(seen_SHCC + square, seen)
    since, until = tl.exp(tl.cumsum(decay, 0)), tl.exp(tl.cumsum(next_decay, 0, reverse=True))
    factors = factors_SHFC + place * 4 + at
    tl.store(factors, since * k_unit)
    tl.store(factors + C, since * q_unit)
    tl.store(factors + 2 * C, until * k_unit)
    tl.store(factors_SHFC + place * 4 + 3 * C, tl.exp(tl.sum(decay, 0)))
    tl.store(solved_SHCC + square, _inverse(lower) * beta[None, :])
