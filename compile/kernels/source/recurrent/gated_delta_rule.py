"""The gated delta rule, token by token."""

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.recurrent.sequence import tokens_of


@triton.jit
def gated_delta_rule(
    q_NGK, k_NGK, v_NGRV, decay_NH, beta_NH, state_SHKV, starts, rows, lengths, out_NHV,
    N: tl.constexpr, B: tl.constexpr, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_HEAD: tl.constexpr, V_ROW: tl.constexpr,
    V_GROUP: tl.constexpr, V_HEAD: tl.constexpr, DECAY_ROW: tl.constexpr, BETA_ROW: tl.constexpr,
    EPS: tl.constexpr, SCALE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """S = exp(decay) · S, then S += k ⊗ (beta · (v - k · S)), then out = q · S, of unit vectors k, and q times SCALE.

    Grid: ceil(V / VALUES), H, B + 1; the last layer of programs stores zeros for padding. A program has VALUES columns
    of a state in registers; no other column changes them. KEYS is K, rounded up to a power of two. dtypes: q, k, v,
    decay and beta float32, bfloat16 or float16; the state and all arithmetic float32. Bytes: the state of each
    sequence, read and written once; of each token q and k for each program, v and the result.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    group = head // R
    i = tl.arange(0, KEYS)
    j = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    is_key = i < K
    is_value = j < V
    if sequence == B:
        for token in range(tl.load(starts + B), N):
            zeros = tl.zeros((VALUES,), out_NHV.dtype.element_ty)
            tl.store(out_NHV + (token * H + head) * V + j, zeros, mask=is_value)
        return
    first, count, row, is_new = tokens_of(sequence, starts, rows, lengths)
    if count <= 0:
        return
    places = state_SHKV + (row * H + head) * (K * V) + i[:, None] * V + j[None, :]
    inside = is_key[:, None] & is_value[None, :]
    state = tl.load(places, mask=inside & (is_new == 0), other=0.0)
    for token in range(first, first + count):
        q = tl.load(q_NGK + token * Q_ROW + group * Q_HEAD + i, mask=is_key, other=0.0).to(tl.float32)
        k = tl.load(k_NGK + token * K_ROW + group * K_HEAD + i, mask=is_key, other=0.0).to(tl.float32)
        v_row = v_NGRV + token * V_ROW + group * V_GROUP + (head % R) * V_HEAD
        v = tl.load(v_row + j, mask=is_value, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(decay_NH + token * DECAY_ROW + head).to(tl.float32))
        beta = tl.load(beta_NH + token * BETA_ROW + head).to(tl.float32)
        q *= tl.rsqrt(tl.sum(q * q, 0) + EPS) * SCALE
        k *= tl.rsqrt(tl.sum(k * k, 0) + EPS)
        state *= decay
        update = beta * (v - tl.sum(k[:, None] * state, 0))
        state += k[:, None] * update[None, :]
        out = tl.sum(q[:, None] * state, 0)
        tl.store(out_NHV + (token * H + head) * V + j, out.to(out_NHV.dtype.element_ty), mask=is_value)
    tl.store(places, state, mask=inside)
