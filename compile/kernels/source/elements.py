"""A kernel for operations on elements and rows, whose code is generated from the nodes of a group."""

import triton
import triton.language as tl

from bringup.compile.kernels.source import generated  # noqa: F401  what BODY is written in: part of the cache's key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def elements(
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    BODY: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Runs BODY(program id, p0, …, p19).

    dtypes and shapes: any; each pointer is a contiguous buffer, whose sizes are constants in BODY. Bytes: each operand
    once for each result that reads it, each result once. Operations: those of the nodes.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    BODY(tl.program_id(0), p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)
