"""A product with a matrix for each head: rows [N, H, I] by H matrices [I, O]; the result is [N, H, O]."""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def head_product(
    x_NHI,
    w_HIO,
    tail_NHT,
    out_NHO,
    N: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    T: tl.constexpr,
    X_ROW: tl.constexpr,
    X_HEAD: tl.constexpr,
    W_HEAD: tl.constexpr,
    W_IN: tl.constexpr,
    W_OUT: tl.constexpr,
    TAIL_ROW: tl.constexpr,
    TAIL_HEAD: tl.constexpr,
    OUT_ROW: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    WIDE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid [ceil(O / COLUMNS), H, ceil(N / ROWS)]. The loop is over tiles of BLOCK of the I channels.

    `tail` [N, H, T], if not None, is copied to the channels after the O columns. TAIL: T, rounded up to a power of two.
    WIDE: products are computed in float32.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    DOT: tl.constexpr = tl.float32 if WIDE else x_NHI.dtype.element_ty
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_row = (row < N)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = (column < O)[None, :]
    x_rows = x_NHI + row.to(tl.int64)[:, None] * X_ROW + head * X_HEAD
    matrix = w_HIO + head.to(tl.int64) * W_HEAD
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, I, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_rows + at[None, :], mask=is_row & (at < I)[None, :], other=0.0).to(DOT)
        place = matrix + at[:, None] * W_IN + column[None, :] * W_OUT
        w = tl.load(place, mask=(at < I)[:, None] & is_column, other=0.0).to(DOT)
        total = tl.dot(x, w, total, input_precision="ieee")
    out_rows = out_NHO + row.to(tl.int64)[:, None] * OUT_ROW + head * OUT_HEAD
    tl.store(out_rows + column[None, :], total.to(out_NHO.dtype.element_ty), mask=is_row & is_column)
    if tail_NHT is not None:  # noqa: SIM102
        if tl.program_id(0) == 0:  # the other condition is the compiler's
            at = tl.arange(0, TAIL)
            is_tail = is_row & (at < T)[None, :]
            tail_rows = tail_NHT + row.to(tl.int64)[:, None] * TAIL_ROW + head * TAIL_HEAD
            tail = tl.load(tail_rows + at[None, :], mask=is_tail, other=0.0)
            tl.store(out_rows + O + at[None, :], tail.to(out_NHO.dtype.element_ty), mask=is_tail)
