"""Linear attention token by token: the gated delta rule (Yang et al. 2024, "Gated Delta Networks", equation 10), and
the state space of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs", equation 8)."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequences import tokens_of


@triton.jit
def _add_pair(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def linear_attention(
    q_NGK, k_NGK, v_NGRV, decay_NH, beta_NH, state_SHKV, starts, rows_B, lengths_B, certain_B, out_NHV,
    N: tl.constexpr, B: tl.constexpr, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PADDING: tl.constexpr, Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_HEAD: tl.constexpr,
    V_ROW: tl.constexpr, V_GROUP: tl.constexpr, V_HEAD: tl.constexpr, D_ROW: tl.constexpr, D_HEAD: tl.constexpr,
    B_ROW: tl.constexpr, B_HEAD: tl.constexpr, S_ROW: tl.constexpr, S_HEAD: tl.constexpr, S_K: tl.constexpr,
    SCALE: tl.constexpr, EPS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KNOWN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid: V / BV, H, sequences, and in prefill one more, whose programs store zeros as the results of padding.

    A program has the state of BV columns of a head in registers; up to 128 channels of a key are in one warp, so that
    sums need no barrier. With S' = exp(decay) · S, the state space has the new state S' + k ⊗ v and the result q · S;
    its `beta` is None. The delta rule has q and k of length 1, and v replaced by u = beta · (v - k · S'). Its result is
    q · S' + (q · k) · u, so both products with the state are one reduction. The operands of the next token are loaded
    before the current one is computed. The state after the first `certain_B` tokens of a sequence is stored; if that
    is None, the state after all.

    dtypes: q, k, v, decay and beta float32, bfloat16 or float16; state float32; all arithmetic in float32. BK: K,
    rounded up to a power of two. R value heads for each key head. PADDING: the state's row for padding, which several
    programs have, so none of them reads or writes it. KNOWN: earlier launches of the step write neither the state nor
    its fields. Bytes: the state once in each direction, v and the result once, q and k once for each of V / BV
    programs. Operations for each token and element of the state: 7 of the delta rule, 5 of the state space.
    """
    let_next_start(EARLY)
    if not KNOWN:
        wait_for_last(EARLY)
    h, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at_k = tl.arange(0, BK)
    at_v = tl.program_id(0) * BV + tl.arange(0, BV)
    of_k, of_v = at_k < K, at_v < V
    results = out_NHV + h * V + at_v
    if starts is not None:  # noqa: SIM102  known when the kernel is compiled
        if b == B:
            padding = tl.load(starts + B)
            if KNOWN:
                wait_for_last(EARLY)
            for n in range(padding, N):
                tl.store(results + n * (H * V), tl.zeros((BV,), out_NHV.dtype.element_ty), mask=of_v)
            return
    first, count = tokens_of(starts, b)
    row = tl.load(rows_B + b)
    owned = of_k[:, None] & of_v[None, :] & (row != PADDING) & (count > 0)
    began = tl.load(lengths_B + b) > count
    place = state_SHKV + row * S_ROW + h * S_HEAD + at_k[:, None] * S_K + at_v[None, :]
    state = tl.load(place, mask=owned & began, other=0.0).to(tl.float32)
    if KNOWN:
        wait_for_last(EARLY)
    queries = q_NGK + h // R * Q_HEAD + at_k
    keys = k_NGK + h // R * K_HEAD + at_k
    values = v_NGRV + h // R * V_GROUP + h % R * V_HEAD + at_v
    decays = decay_NH + h * D_HEAD
    end = first + count
    stored = end
    if certain_B is not None:
        stored = first + tl.load(certain_B + b)
    q = tl.load(queries + first * Q_ROW, mask=of_k & (count > 0), other=0.0)
    k = tl.load(keys + first * K_ROW, mask=of_k & (count > 0), other=0.0)
    v = tl.load(values + first * V_ROW, mask=of_v & (count > 0), other=0.0)
    decay = tl.load(decays + first * D_ROW, mask=count > 0, other=0.0)
    if beta_NH is not None:
        betas = beta_NH + h * B_HEAD
        beta = tl.load(betas + first * B_ROW, mask=count > 0, other=0.0)
    for n in range(first, end):
        q_1K, k_1K, v_1V = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
        state = tl.exp(decay.to(tl.float32)) * state
        more = n + 1 < end
        q = tl.load(queries + (n + 1) * Q_ROW, mask=of_k & more, other=0.0)
        k = tl.load(keys + (n + 1) * K_ROW, mask=of_k & more, other=0.0)
        v = tl.load(values + (n + 1) * V_ROW, mask=of_v & more, other=0.0)
        decay = tl.load(decays + (n + 1) * D_ROW, mask=more, other=0.0)
        if beta_NH is not None:
            rate = beta.to(tl.float32)
            beta = tl.load(betas + (n + 1) * B_ROW, mask=more, other=0.0)
            of_query, of_key, of_both = tl.reduce((q_1K * q_1K, k_1K * k_1K, q_1K * k_1K), 0, _add_three)
            q_unit, k_unit = tl.rsqrt(of_query + EPS) * SCALE, tl.rsqrt(of_key + EPS)
            found, seen = tl.reduce((k_1K[:, None] * state, q_1K[:, None] * state), 0, _add_pair)
            update = rate * (v_1V - k_unit * found)
            state += (k_unit * k_1K)[:, None] * update[None, :]
            result = q_unit * seen + q_unit * k_unit * of_both * update
        else:
            state += k_1K[:, None] * v_1V[None, :]
            result = tl.sum(q_1K[:, None] * state, 0)
        tl.store(results + n * (H * V), result.to(out_NHV.dtype.element_ty), mask=of_v)
        if certain_B is not None:  # noqa: SIM102  known when the kernel is compiled
            if n + 1 == stored:
                tl.store(place, state.to(state_SHKV.dtype.element_ty), mask=owned)
    if certain_B is None:
        tl.store(place, state.to(state_SHKV.dtype.element_ty), mask=owned)
