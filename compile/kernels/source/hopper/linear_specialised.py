"""A product of many rows with a matrix: one warp fetches the operands, the others multiply and compute the epilogue."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from bringup.compile.kernels.source import generated  # noqa: F401  what the functions are written in: part of the key
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last
from bringup.compile.kernels.source.products import tile_of

# Triton 3.6 has another name for it.
fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
FETCHING_WARPS = gl.constexpr(1)
FETCHING_REGISTERS = gl.constexpr(40)  # of a thread of that warp; with 24 some kernels spill. The others have 232


@gluon.jit
def linear_specialised(
    x, w0, w1,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    EPILOGUE: tl.constexpr, PAIR: tl.constexpr,
    M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr, X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Tiles of BM rows and BN lanes: EPILOGUE of x · w0, and of x · w1 too if PAIR. Grid: any number of programs.

    Contract, bytes and operations are those of `linear_panels`, which is for architectures without `wgmma`. Here warps
    have different tasks. One warp fetches tiles of x and of the weights into STAGES buffers in shared memory, in the
    order in which they are needed, across all tiles of the program. The `num_warps` others multiply what has arrived:
    the products of a stage run while those of the next one are started. Two mbarriers of each stage order the warps:
    `full` completes when the bytes of a fetch have arrived, `empty` when the products have read them.
    """
    let_next_start(EARLY)
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * BK, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = x.dtype.element_ty
    xs = gl.allocate_shared_memory(dtype, [STAGES, BM, BK], layout)
    w0s = gl.allocate_shared_memory(dtype, [STAGES, BN, BK], layout)
    w1s = w0s
    if PAIR:
        w1s = gl.allocate_shared_memory(dtype, [STAGES, BN, BK], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    hopper.fence_async_shared()  # the copy engine sees them
    gl.warp_specialize(
        [
            (_multiply, (xs, w0s, w1s, full, empty, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14,
                         p15, p16, p17, p18, p19, EPILOGUE, PAIR, M, LANES, K, EARLY)),
            (_fetch, (x, w0, w1, xs, w0s, w1s, full, empty, PAIR, M, LANES, K, X_STRIDE, W_STRIDE, EARLY)),
        ],
        [FETCHING_WARPS],
        [FETCHING_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _fetch(
    x, w0, w1, xs, w0s, w1s, full, empty,
    PAIR: tl.constexpr, M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr,
    X_STRIDE: tl.constexpr, W_STRIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Fetches the operands of all tiles of a program. Tensor maps are written after the wait, see `linear_panels`."""
    STAGES: tl.constexpr = xs.shape[0]
    BM: tl.constexpr = xs.shape[1]
    BN: tl.constexpr = w0s.shape[1]
    BK: tl.constexpr = xs.shape[2]
    BYTES: tl.constexpr = 2 * BK * (BM + (2 * BN if PAIR else BN))
    wait_for_last(EARLY)
    rows_of_x = tma.make_tensor_descriptor(x, [M, K], [X_STRIDE, 1], [BM, BK], xs.layout)
    rows_of_w0 = tma.make_tensor_descriptor(w0, [LANES, K], [W_STRIDE, 1], [BN, BK], w0s.layout)
    rows_of_w1 = rows_of_w0
    if PAIR:
        rows_of_w1 = tma.make_tensor_descriptor(w1, [LANES, K], [W_STRIDE, 1], [BN, BK], w1s.layout)
    step = 0
    for tile in range(gl.program_id(0), tiles_of(M, LANES, BM, BN), gl.num_programs(0)):
        top, first = tile_of(tile, M, LANES, BM, BN)
        for k in range(0, K, BK):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), step // STAGES % 2 ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            fetch(rows_of_x, [top, k], full.index(stage), xs.index(stage))
            fetch(rows_of_w0, [first, k], full.index(stage), w0s.index(stage))
            if PAIR:
                fetch(rows_of_w1, [first, k], full.index(stage), w1s.index(stage))
            step += 1


@gluon.jit
def _multiply(
    xs, w0s, w1s, full, empty,
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18, p19,
    EPILOGUE: tl.constexpr, PAIR: tl.constexpr, M: tl.constexpr, LANES: tl.constexpr, K: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Multiplies what `_fetch` fetches, and computes the epilogue. A stage is released one step after its products."""
    STAGES: tl.constexpr = xs.shape[0]
    BM: tl.constexpr = xs.shape[1]
    BN: tl.constexpr = w0s.shape[1]
    BK: tl.constexpr = xs.shape[2]
    WARPS: tl.constexpr = gl.num_warps()
    SUMS: tl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BN, 16])
    WIDEST: tl.constexpr = 64 if PAIR else 128  # lanes of the epilogue that registers permit
    PART: tl.constexpr = BN if BN < WIDEST else WIDEST
    OUT: tl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // PART, PART // 8], [WARPS, 1], [1, 0])
    PARTS: tl.constexpr = BN // PART
    wait_for_last(EARLY)
    step = 0
    for tile in range(gl.program_id(0), tiles_of(M, LANES, BM, BN), gl.num_programs(0)):
        top, first = tile_of(tile, M, LANES, BM, BN)
        acc0 = gl.zeros((BM, BN), gl.float32, SUMS)
        acc1 = acc0
        for k in range(0, K, BK):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES % 2)
            acc0 = warpgroup_mma(xs.index(stage), w0s.index(stage).permute((1, 0)), acc0, is_async=True)
            if PAIR:
                acc1 = warpgroup_mma(xs.index(stage), w1s.index(stage).permute((1, 0)), acc1, is_async=True)
                acc0, acc1 = warpgroup_mma_wait(2, deps=(acc0, acc1))
            else:
                acc0 = warpgroup_mma_wait(1, deps=(acc0,))
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        if PAIR:
            acc0, acc1 = warpgroup_mma_wait(0, deps=(acc0, acc1))
        else:
            acc0 = warpgroup_mma_wait(0, deps=(acc0,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
        row = (top + gl.arange(0, BM, gl.SliceLayout(1, OUT)))[:, None]
        parts0 = parts_of(acc0, PARTS)
        parts1 = parts0
        if PAIR:
            parts1 = parts_of(acc1, PARTS)
        for part in gl.static_range(PARTS):
            begin = first + part * PART
            lane = (begin + gl.arange(0, PART, gl.SliceLayout(0, OUT)))[None, :]
            EPILOGUE(gl.convert_layout(parts0[part], OUT), gl.convert_layout(parts1[part], OUT),
                     gl.minimum(row, M - 1), lane, (row < M) & (lane < LANES), gl.program_id(1), begin,
                     p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, p18,
                     p19)  # fmt: skip


@gluon.jit
def tiles_of(M: tl.constexpr, LANES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The number of tiles of all programs."""
    return ((M + BM - 1) // BM) * ((LANES + BN - 1) // BN)


@gluon.jit
def parts_of(tile, PARTS: tl.constexpr):
    """The 1, 2 or 4 parts of a tile [R, C] from left to right, each [R, C / PARTS]."""
    if PARTS == 1:
        parts = (tile,)
    elif PARTS == 2:
        parts = halves(tile)
    else:
        left, right = halves(tile)
        a, b = halves(left)
        c, d = halves(right)
        parts = (a, b, c, d)
    return parts


@gluon.jit
def halves(tile):
    """The left and the right half of a tile [R, C], each [R, C / 2]."""
    ROWS: tl.constexpr = tile.shape[0]
    return gl.split(gl.permute(gl.reshape(tile, (ROWS, 2, tile.shape[1] // 2)), (0, 2, 1)))
