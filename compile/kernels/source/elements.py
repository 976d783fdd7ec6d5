"""Operations on elements and rows whose code is generated from a group's nodes."""

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
    """Runs BODY(number of the program, p0, …, p19).

    dtypes and shapes: any; each pointer is a dense buffer, and BODY has its sizes as numbers. Bytes: each element that
    is read once for each result that needs it, each result once. Operations: those of the nodes.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    BODY(tl.program_id(0), p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19)
