"""Causal attention of packed prompts over caches: four warps fetch keys and values, eight multiply and take softmax."""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from bringup.compile.kernels.source.attention_parts import (
    BLOCK,
    INFINITY,
    finished,
    first_key,
    first_row,
    is_near,
    scored,
    shares_of,
)
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last

copy = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared  # in 3.6
POWERS = gl.constexpr(20)  # of two: a bound of sequences and of parts of one
# Registers are those of a thread of these warps, with a block table and without; with others some kernels spill.
FETCHING_WARPS, BLOCK_REGISTERS, FETCHING_REGISTERS = gl.constexpr(4), gl.constexpr(48), gl.constexpr(40)


@gluon.jit
def attention_specialised(
    q_NHK, k_SGK, v_SGK, positions_N, starts, block_table_BP, rows_B, lengths_B, out_NHK, scale, sinks_H, slopes_H,
    N: tl.constexpr, B: tl.constexpr, B_OR_MORE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, K: tl.constexpr,
    Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr, K_ROW: tl.constexpr, K_HEAD: tl.constexpr,
    V_ROW: tl.constexpr, V_HEAD: tl.constexpr, TABLE: tl.constexpr, LENGTH: tl.constexpr,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, RING: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Parts of QUERIES tokens of a sequence and one head, and tiles of KEYS keys. Grid: any number of programs.

    The other parameters are those of `attention_prefill`. dtypes: bfloat16 or float16, all the same; keys and values
    have K channels, 64 or 128. Rows of the caches are divisible by 16 bytes.

    Four warps copy keys and values, in turns, into STAGES buffers in shared memory, with zeros for keys that do not
    exist. The `num_warps` others multiply: the products with a tile of keys and with the values of the tile before it
    are started together, and the exponentials of the scores are computed while the latter run (as in FlashAttention-3,
    Shah et al. 2024). The barrier objects `full` and `empty` are those of `linear_specialised`. Zeros are written for
    padding, which starts at token `starts[B]`.
    """
    let_next_start(EARLY)
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = q_NHK.dtype.element_ty
    queries = gl.allocate_shared_memory(dtype, [QUERIES, K], layout)
    tiles = gl.allocate_shared_memory(dtype, [STAGES, KEYS, K], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (_attend, (queries, tiles, full, empty, q_NHK, positions_N, starts, lengths_B, out_NHK, scale, sinks_H,
                       slopes_H, N, B, B_OR_MORE, H, Q_ROW, Q_HEAD, LENGTH, WINDOW, CHUNKED, RING, EARLY)),
            (_fetch, (tiles, full, empty, k_SGK, v_SGK, positions_N, starts, block_table_BP, rows_B, lengths_B,
                      N, B, B_OR_MORE, H, G, QUERIES, K_ROW, K_HEAD, V_ROW, V_HEAD, TABLE, LENGTH, WINDOW,
                      CHUNKED, RING, EARLY)),
        ],
        [FETCHING_WARPS],
        [FETCHING_REGISTERS if block_table_BP is None else BLOCK_REGISTERS],
    )  # fmt: skip


@gluon.jit
def counts_of(starts, B: tl.constexpr, B_OR_MORE: tl.constexpr, QUERIES: tl.constexpr):
    """The number of parts of each sequence for one head: int32 [B_OR_MORE], 0 past the last sequence."""
    at = gl.arange(0, B_OR_MORE, gl.BlockedLayout([B_OR_MORE // 32], [32], [gl.num_warps()], [0]))  # all in each warp
    is_sequence = at < B
    first = gl.load(starts + at, mask=is_sequence, other=0).to(tl.int32)
    last = gl.load(starts + at + 1, mask=is_sequence, other=0).to(tl.int32)
    return (last - first + QUERIES - 1) // QUERIES


@gluon.jit
def turns_of(counts, H: tl.constexpr):
    """The number of turns in which programs compute all parts."""
    programs = tl.num_programs(0)
    return (gl.sum(counts, 0) * H + programs - 1) // programs


@gluon.jit
def place_of(number, counts, B: tl.constexpr, TILES: tl.constexpr):
    """(sequence, part of it) of part `number`: the parts in descending order, and among equal ones by sequence.

    So the parts with the most keys come first. Parts that do not exist have no number: empty sequences would otherwise
    leave some programs without work. Both results are found by bisection. TILES: more than a sequence has parts.
    """
    sequence = 0
    part = 0
    if B == 1:
        part = gl.sum(counts, 0) - 1 - number
    else:
        for bit in gl.static_range(POWERS - 1, -1, -1):
            if 1 << bit < TILES:
                middle = part + (1 << bit)
                from_middle = gl.sum(gl.maximum(counts - middle, 0), 0)  # the number of parts `middle` and later
                part = gl.where(from_middle > number, middle, part)
        rank = number - gl.sum(gl.maximum(counts - (part + 1), 0), 0)
        at = gl.arange(0, counts.shape[0], counts.type.layout)
        for bit in gl.static_range(POWERS - 1, -1, -1):
            if 1 << bit < counts.shape[0]:
                middle = sequence + (1 << bit)
                before = gl.sum(((counts > part) & (at < middle)).to(tl.int32), 0)
                sequence = gl.where(before <= rank, middle, sequence)
    return sequence, part


@gluon.jit
def part_of(
    turn, counts, positions_N, starts, lengths_B,
    N: tl.constexpr, B: tl.constexpr, H: tl.constexpr, QUERIES: tl.constexpr,
    LENGTH: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """A program's part of a turn: (sequence, head, first token, token after the last, first key, key after the last).

    In every second turn the order of programs is reversed, so that all have about as many keys. Positions ascend. A
    part that does not exist has no tokens and no keys; each other one has a key.
    """
    programs = tl.num_programs(0)
    program = tl.program_id(0)
    number = turn * programs + tl.where(turn % 2 == 0, program, programs - 1 - program)
    exists = number < gl.sum(counts, 0) * H
    head = number % H
    TILES: tl.constexpr = (N + QUERIES - 1) // QUERIES + 1
    sequence, part = place_of(tl.where(exists, number, 0) // H, counts, B, TILES)
    first = tl.load(starts + sequence).to(tl.int32) + part * QUERIES
    last = tl.minimum(tl.load(starts + sequence + 1).to(tl.int32), first + QUERIES)
    last = tl.where(exists, last, first)
    end = tl.load(positions_N + last - 1, mask=exists, other=-1).to(tl.int32) + 1
    begin = 0
    if RING is not None:
        begin = tl.maximum(begin, tl.load(lengths_B + sequence, mask=exists, other=0).to(tl.int32) - RING)
    else:
        end = tl.minimum(end, LENGTH)
    if WINDOW is not None:
        lowest = tl.load(positions_N + first, mask=exists, other=0)
        begin = tl.maximum(begin, first_key(lowest.to(tl.int32), WINDOW, CHUNKED))
    return sequence, head, first, last, tl.maximum(tl.minimum(begin, end - 1), 0), end


@gluon.jit
def _fetch(
    tiles, full, empty, k_SGK, v_SGK, positions_N, starts, block_table_BP, rows_B, lengths_B,
    N: tl.constexpr, B: tl.constexpr, B_OR_MORE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, QUERIES: tl.constexpr,
    K_ROW: tl.constexpr, K_HEAD: tl.constexpr, V_ROW: tl.constexpr, V_HEAD: tl.constexpr, TABLE: tl.constexpr,
    LENGTH: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, RING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copies the keys and values of all parts of a program. A copy is announced when the next one has been started."""
    STAGES: tl.constexpr = tiles.shape[0]
    KEYS: tl.constexpr = tiles.shape[1]
    K: tl.constexpr = tiles.shape[2]
    LANES: tl.constexpr = K // 8
    layout: tl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    wait_for_last(EARLY)
    FEW: tl.constexpr = 16  # rows: a thread has the offsets of so few, in one or two registers
    channel = gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    at = gl.arange(0, FEW, gl.SliceLayout(1, layout))[:, None]
    step = 0
    counts = counts_of(starts, B, B_OR_MORE, QUERIES)
    for turn in range(turns_of(counts, H)):
        sequence, head, _, _, begin, end = part_of(
            turn, counts, positions_N, starts, lengths_B, N, B, H, QUERIES, LENGTH, WINDOW, CHUNKED, RING
        )
        group = head // (H // G)
        for start in range(begin // KEYS * KEYS, end, KEYS):
            for values in gl.static_range(2):
                mbarrier.wait(empty.index(step % STAGES), step // STAGES % 2 ^ 1)
                for block in gl.static_range(0, KEYS, BLOCK):
                    key = start + block
                    row = first_row(key, sequence, block_table_BP, rows_B, key < end, TABLE, RING)
                    for few in gl.static_range(0, BLOCK, FEW):
                        if values:
                            place = v_SGK + (row + few) * V_ROW + group * V_HEAD + (at * V_ROW + channel)
                        else:
                            place = k_SGK + (row + few) * K_ROW + group * K_HEAD + (at * K_ROW + channel)
                        is_key = (at >= begin - key - few) & (at < end - key - few)
                        copy(tiles.index(step % STAGES).slice(block + few, FEW), place, mask=is_key)
                async_copy.commit_group()
                if step > 0:
                    async_copy.wait_group(1)
                    hopper.fence_async_shared()
                    mbarrier.arrive(full.index((step - 1) % STAGES))
                step += 1
    if step > 0:
        async_copy.wait_group(0)
        hopper.fence_async_shared()
        mbarrier.arrive(full.index((step - 1) % STAGES))


@gluon.jit
def _attend(
    queries, tiles, full, empty, q_NHK, positions_N, starts, lengths_B, out_NHK, scale, sinks_H, slopes_H,
    N: tl.constexpr, B: tl.constexpr, B_OR_MORE: tl.constexpr, H: tl.constexpr,
    Q_ROW: tl.constexpr, Q_HEAD: tl.constexpr,
    LENGTH: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, RING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes all parts of a program. A tile of keys is released after its products, one of values a tile later."""
    STAGES: tl.constexpr = tiles.shape[0]
    KEYS: tl.constexpr = tiles.shape[1]
    QUERIES: tl.constexpr = queries.shape[0]
    K: tl.constexpr = queries.shape[1]
    LANES: tl.constexpr = K // 8
    SCORES: tl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, KEYS, 16])
    SUMS: tl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, K, 16])
    SHARES: tl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROWS: tl.constexpr = gl.SliceLayout(1, SCORES)
    MEMORY: tl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    dtype: tl.constexpr = q_NHK.dtype.element_ty
    wait_for_last(EARLY)
    channel = gl.arange(0, K, gl.SliceLayout(0, MEMORY))[None, :]
    at = gl.arange(0, QUERIES, gl.SliceLayout(1, MEMORY))[:, None]
    step = 0
    counts = counts_of(starts, B, B_OR_MORE, QUERIES)
    for turn in range(turns_of(counts, H)):
        _, head, first, last, begin, end = part_of(
            turn, counts, positions_N, starts, lengths_B, N, B, H, QUERIES, LENGTH, WINDOW, CHUNKED, RING
        )
        if first < last:
            token = first + at
            q = gl.load(q_NHK + token.to(tl.int64) * Q_ROW + head * Q_HEAD + channel, mask=token < last, other=0.0)
            queries.store(q)
            hopper.fence_async_shared()
            row = first + gl.arange(0, QUERIES, ROWS)
            position = gl.load(positions_N + row, mask=row < last, other=-1).to(tl.int32)
            slopes = None
            if slopes_H is not None:
                slopes = gl.load(slopes_H + head).to(tl.float32) + gl.zeros((QUERIES,), tl.float32, ROWS)
            top = gl.full((QUERIES,), -INFINITY, tl.float32, ROWS)
            total = gl.zeros((QUERIES,), tl.float32, ROWS)
            mixed = gl.zeros((QUERIES, K), tl.float32, SUMS)
            start = begin // KEYS * KEYS
            products = gl.zeros((QUERIES, KEYS), tl.float32, SCORES)
            mbarrier.wait(full.index(step % STAGES), step // STAGES % 2)
            keys = tiles.index(step % STAGES).permute((1, 0))
            products = warpgroup_mma(queries, keys, products, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=(products,))
            mbarrier.arrive(empty.index(step % STAGES))
            scores = masked(products, position, start, slopes, scale, WINDOW, CHUNKED)
            shares, top, factor = shares_of(scores, top)
            total = gl.sum(shares, 1)
            operand = gl.convert_layout(shares.to(dtype), SHARES)
            step += 1
            mbarrier.wait(full.index(step % STAGES), step // STAGES % 2)
            for start in range(begin // KEYS * KEYS + KEYS, end, KEYS):
                after = step + 1
                mbarrier.wait(full.index(after % STAGES), after // STAGES % 2)
                keys = tiles.index(after % STAGES).permute((1, 0))
                products = gl.zeros((QUERIES, KEYS), tl.float32, SCORES)
                products = warpgroup_mma(queries, keys, products, use_acc=False, is_async=True)
                mixed = warpgroup_mma(operand, tiles.index(step % STAGES), mixed, is_async=True)
                products = warpgroup_mma_wait(1, deps=(products,))
                mbarrier.arrive(empty.index(after % STAGES))
                scores = masked(products, position, start, slopes, scale, WINDOW, CHUNKED)
                shares, top, factor = shares_of(scores, top)
                total = total * factor + gl.sum(shares, 1)
                # The values of this tile. The loop of this wait separates the exponentials above from the wait for the
                # products below: in one basic block ptxas places the exponentials after that wait.
                mbarrier.wait(full.index((step + 2) % STAGES), (step + 2) // STAGES % 2)
                mixed, operand = warpgroup_mma_wait(0, deps=(mixed, operand))
                mbarrier.arrive(empty.index(step % STAGES))
                mixed = mixed * gl.convert_layout(factor, gl.SliceLayout(1, SUMS))[:, None]
                operand = gl.convert_layout(shares.to(dtype), SHARES)
                step += 2
            mixed = warpgroup_mma(operand, tiles.index(step % STAGES), mixed, is_async=True)
            mixed = warpgroup_mma_wait(0, deps=(mixed,))
            mbarrier.arrive(empty.index(step % STAGES))
            step += 1
            top = gl.convert_layout(top, gl.SliceLayout(1, SUMS))
            total = gl.convert_layout(total, gl.SliceLayout(1, SUMS))
            sinks = None
            if sinks_H is not None:
                sinks = gl.load(sinks_H + head).to(tl.float32) + total * 0.0
            result = finished(mixed, top, total, sinks).to(dtype)
            place = out_NHK + (first.to(tl.int64) * H + head) * K + (at * (H * K) + channel)
            gl.store(place, gl.convert_layout(result, MEMORY), mask=at < last - first)
    padding = gl.load(starts + B).to(tl.int32)
    for number in range(gl.program_id(0), (N + QUERIES - 1) // QUERIES * H, gl.num_programs(0)):
        token = padding + number // H * QUERIES + at
        place = out_NHK + (token.to(tl.int64) * H + number % H) * K + channel
        gl.store(place, gl.zeros((QUERIES, K), dtype, MEMORY), mask=token < N)


@gluon.jit
def masked(products, position, start, slopes, scale, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """Scores of a tile of keys, -infinity for keys that a query does not see. A ring has a window, and all its rows."""
    key = gl.arange(0, products.shape[1], gl.SliceLayout(0, products.type.layout))[None, :]
    distance = key - (position - start)[:, None]
    seen = distance <= 0
    if WINDOW is not None:
        seen = seen & is_near(distance, position, WINDOW, CHUNKED)
    return gl.where(seen, scored(products, distance, slopes, scale, None), -INFINITY)
