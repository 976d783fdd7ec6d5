"""Linear attention of prompts in chunks: the state, chunk after chunk, and the results.

`delta_chunks` or `state_space_chunks` has computed what does not depend on the state.
"""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.decays import decays_between
from bringup.compile.kernels.source.recurrent.exact_products import exact_product
from bringup.compile.kernels.source.recurrent.sequences import tokens_of


@triton.jit
def chunk_states(
    q_NGK, k_NGK, v_NGRV, scores_SGCC, factors_SHFC, solved_SHCC, seen_SHCC, state_SHKV, starts, rows_B, lengths_B,
    out_NHV,
    N: tl.constexpr, B: tl.constexpr, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    C: tl.constexpr, PADDING: tl.constexpr, Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr,
    K_HEAD: tl.constexpr, V_ROW: tl.constexpr, V_GROUP: tl.constexpr, V_HEAD: tl.constexpr, S_ROW: tl.constexpr,
    S_HEAD: tl.constexpr, S_K: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KNOWN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: V / BV, H, sequences and one more, whose programs store zeros as the results of padding.

    A program has the state S of BV columns of a head in registers. With updates u, a chunk has the results
    b · (q · S) + seen · u; the state after it is d · S + kᵀ · (c · u).

    The factors a, b, c and d are results of the first kernel. Of the delta rule, so are `solved` and `seen`, and u is
    solved · (v - a · (k · S)). Of the state space, a is the decay of the token after each, `seen` is the lower
    P_ij · scores_ij for the decays P_ij from token j to token i, and u is v. The operands of the other operation are
    None.

    dtypes: q and k bfloat16; v float32, bfloat16 or float16; state float32. PADDING, KNOWN: as in `linear_attention`.
    Bytes: the state once in each direction, v and the result once; q, k and what is known of a chunk once for each of
    V / BV programs. Operations for each token and head: 4 · K · V + 2 · C · V, of the delta rule 6 · K · V + 4 · C · V.
    """
    let_next_start(EARLY)
    if not KNOWN:
        wait_for_last(EARLY)
    h, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at, at_k, at_v = tl.arange(0, C), tl.arange(0, BK), tl.program_id(0) * BV + tl.arange(0, BV)
    of_k, of_v = at_k < K, at_v < V
    results = out_NHV + h * V + at_v[None, :]
    if b == B:
        padding = tl.load(starts + B)
        if KNOWN:
            wait_for_last(EARLY)
        for n in range(padding, N, C):
            tl.store(
                results + (n + at)[:, None] * (H * V),
                tl.zeros((C, BV), out_NHV.dtype.element_ty),
                mask=(n + at < N)[:, None] & of_v[None, :],
            )
        return
    first, count = tokens_of(starts, b)
    row = tl.load(rows_B + b)
    owned = of_k[:, None] & of_v[None, :] & (row != PADDING) & (count > 0)
    place = state_SHKV + row * S_ROW + h * S_HEAD + at_k[:, None] * S_K + at_v[None, :]
    state = tl.load(place, mask=owned & (tl.load(lengths_B + b) > count), other=0.0).to(tl.float32)
    if KNOWN:
        wait_for_last(EARLY)
    queries = q_NGK + h // R * Q_HEAD + at_k[None, :]
    keys = k_NGK + h // R * K_HEAD + at_k[None, :]
    values = v_NGRV + h // R * V_GROUP + h % R * V_HEAD + at_v[None, :]
    within = at[:, None] * C + at[None, :]
    for start in range(0, count, C):
        n = first + start
        slot = (first // C + b) + start // C
        own = start + at[:, None] < count
        k = tl.load(keys + n * K_ROW + at[:, None] * K_ROW, mask=own & of_k[None, :], other=0.0)
        v = tl.load(values + n * V_ROW + at[:, None] * V_ROW, mask=own & of_v[None, :], other=0.0)
        factors = factors_SHFC + (slot * H + h) * 4 * C
        of_key = tl.load(factors + at)
        if scores_SGCC is not None:
            scores = tl.load(scores_SGCC + (slot * (H // R) + h // R) * C * C + within)
            seen = tl.where(at[:, None] >= at[None, :], decays_between(of_key, C) * scores, 0.0)
            updates = v if v.dtype == tl.bfloat16 else v.to(tl.float32)
        else:
            solved = tl.load(solved_SHCC + (slot * H + h) * C * C + within)
            missing = v.to(tl.float32) - of_key[:, None] * exact_product(k, state, None)
            updates = exact_product(solved, missing, None)
            seen = tl.load(seen_SHCC + (slot * H + h) * C * C + within)
        of_query, gate = tl.load(factors + C + at), tl.load(factors + 3 * C)
        q = tl.load(queries + n * Q_ROW + at[:, None] * Q_ROW, mask=own & of_k[None, :], other=0.0)
        result = of_query[:, None] * exact_product(q, state, None)
        result = exact_product(seen, updates, result)
        of_update = tl.load(factors + 2 * C + at)  # loaded before the products, some kernels spilled
        state = exact_product(tl.trans(k), of_update[:, None] * updates.to(tl.float32), gate * state)
        tl.store(
            results + n * (H * V) + at[:, None] * (H * V), result.to(out_NHV.dtype.element_ty), mask=own & of_v[None, :]
        )
    tl.store(place, state.to(state_SHKV.dtype.element_ty), mask=owned)
