"""Triton kernels for the tests of the emulator: one for each kind of instruction that compiled kernels have."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, out, n, stride, eps, BLOCK: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value) / n + eps)
    tl.store(out + row * stride + column, (value * root * scale).to(tl.bfloat16), mask=inside)


@triton.jit
def gemv(x, weight, out, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """out[n] = weight[n, k] x[k], BN rows a program."""
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN, BK), tl.float32)
    for start in range(0, k, BK):
        column = start + tl.arange(0, BK)
        inside = (row[:, None] < n) & (column[None, :] < k)
        value = tl.load(x + column, mask=column < k, other=0.0).to(tl.float32)
        tile = tl.load(weight + row[:, None] * k + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tile * value[None, :]
    tl.store(out + row, tl.sum(total, 1), mask=row < n)


@triton.jit
def gemm(a, b, c, m, n, k, sbn, sbk, PRECISION: tl.constexpr, OUT: tl.constexpr, SUM: tl.constexpr,
         BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """c[m, n] = a[m, k] b[k, n]; a is row major, b has the strides sbk and sbn."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), SUM)
    for start in range(0, k, BK):
        depth = start + inner
        left = tl.load(a + row[:, None] * k + depth[None, :], mask=(row[:, None] < m) & (depth[None, :] < k), other=0.0)
        place = b + depth[:, None] * sbk + column[None, :] * sbn
        right = tl.load(place, mask=(depth[:, None] < k) & (column[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=SUM)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(OUT), mask=inside)


@triton.jit
def gemm_descriptors(a, b, c, m, n, k, SPECIALIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c[m, n] = a[m, k] b[n, k]^T through tensor descriptors that the kernel creates."""
    from_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    from_b = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    to_c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK, warp_specialize=SPECIALIZE):
        total = tl.dot(from_a.load([row, start]), from_b.load([column, start]).T, total)
    to_c.store([row, column], total.to(tl.bfloat16))


@triton.jit
def flash(q, k, v, out, tokens, head, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Causal attention of one head, BM queries a program; `head` elements from one head to the next."""
    begin = tl.program_id(0) * BM
    base = tl.program_id(1) * head
    row, column, d = begin + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + base + row[:, None] * D + d[None, :], mask=row[:, None] < tokens, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.minimum(begin + BM, tokens), BN):
        token = start + column
        key = tl.load(k + base + token[None, :] * D + d[:, None], mask=token[None, :] < tokens, other=0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((token[None, :] <= row[:, None]) & (token[None, :] < tokens), score, float("-inf"))
        newer = tl.maximum(top, tl.max(score, 1))
        share = tl.exp(score - newer[:, None])
        fade = tl.exp(top - newer)
        value = tl.load(v + base + token[:, None] * D + d[None, :], mask=token[:, None] < tokens, other=0.0)
        total = tl.dot(share.to(tl.bfloat16), value, total * fade[:, None])
        weight = weight * fade + tl.sum(share, 1)
        top = newer
    result = (total / weight[:, None]).to(tl.bfloat16)
    tl.store(out + base + row[:, None] * D + d[None, :], result, mask=row[:, None] < tokens)


@triton.jit
def decode(q, keys, values, table, context, part, sums, count, out, scale,
           D: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr, BT: tl.constexpr,
           BARRIER: tl.constexpr):  # fmt: skip
    """Split-KV attention of one query over a paged cache; the last program to arrive combines the parts."""
    split = tl.program_id(0)
    length = tl.load(context)
    each = tl.cdiv(tl.cdiv(length, SPLITS), BT) * BT
    first = split * each
    end = tl.minimum(first + each, length)
    d = tl.arange(0, D)
    query = tl.load(q + d).to(tl.float32) * scale
    top = float("-inf")
    weight = 0.0
    total = tl.zeros((D,), tl.float32)
    for start in range(first, end, BT):
        token = start + tl.arange(0, BT)
        page = tl.load(table + token // PAGE, mask=token < end, other=0).to(tl.int64)
        place = (page * PAGE + token % PAGE)[:, None] * D + d[None, :]
        key = tl.load(keys + place, mask=token[:, None] < end, other=0.0).to(tl.float32)
        score = tl.where(token < end, tl.sum(key * query[None, :], 1), float("-inf"))
        newer = tl.maximum(top, tl.max(score, 0))
        share = tl.exp(score - newer)
        fade = tl.exp(top - newer)
        value = tl.load(values + place, mask=token[:, None] < end, other=0.0).to(tl.float32)
        total = total * fade + tl.sum(value * share[:, None], 0)
        weight = weight * fade + tl.sum(share, 0)
        top = newer
    tl.store(part + split * D + d, total)
    tl.store(sums + split, weight)
    tl.store(sums + SPLITS + split, top)
    if BARRIER:
        tl.debug_barrier()
    if tl.atomic_add(count, 1, sem="acq_rel") == SPLITS - 1:
        s = tl.arange(0, SPLITS)
        tops = tl.load(sums + SPLITS + s)
        factor = tl.exp(tops - tl.max(tops, 0))
        parts = tl.load(part + s[:, None] * D + d[None, :])
        combined = tl.sum(parts * factor[:, None], 0) / tl.sum(tl.load(sums + s) * factor, 0)
        tl.store(out + d, combined.to(tl.bfloat16))
        tl.store(count, 0)


@triton.jit
def softmax_argmax(logits, probability, best, n, stride, BLOCK: tl.constexpr):
    """Softmax of a row, and the lowest index of its largest element."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + column, mask=column < n, other=float("-inf"))
    top, index = tl.max(value, 0, return_indices=True)
    power = tl.exp(value - top)
    tl.store(probability + row * stride + column, power / tl.sum(power, 0), mask=column < n)
    tl.store(best + row, index.to(tl.int32))


@triton.jit
def histogram(ids, weight, counts, sums, largest, n, BLOCK: tl.constexpr):
    """Atomic add of int32 and float32, atomic max."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    index = tl.load(ids + place, mask=inside, other=0)
    tl.atomic_add(counts + index, 1, mask=inside, sem="relaxed")
    tl.atomic_add(sums + index, tl.load(weight + place, mask=inside, other=0.0), mask=inside, sem="relaxed")
    tl.atomic_max(largest + index, place, mask=inside, sem="relaxed")


@triton.jit
def grid_barrier(x, part, count, out, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """x over its sum: every program waits until all have stored their part of the sum."""
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n, other=0.0)
    tl.store(part + program, tl.sum(value, 0))
    tl.debug_barrier()
    tl.atomic_add(count, 1, sem="release")
    while tl.atomic_add(count, 0, sem="acquire") < PROGRAMS:
        pass
    tl.debug_barrier()
    all_parts = tl.load(part + tl.arange(0, PROGRAMS))
    tl.store(out + place, value / tl.sum(all_parts, 0), mask=place < n)


@triton.jit
def rope(x, cosine, sine, slots, cache, HEADS: tl.constexpr, D: tl.constexpr):
    """Rotates a head of a token and writes it to the token's slot of a cache; slot -1: not written."""
    token, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = D // 2
    d = tl.arange(0, D)
    base = x + (token * HEADS + head) * D
    value = tl.load(base + d).to(tl.float32)
    other = tl.load(base + (d + half) % D).to(tl.float32)
    c, s = tl.load(cosine + token * half + d % half), tl.load(sine + token * half + d % half)
    rotated = value * c + tl.where(d < half, -other, other) * s
    slot = tl.load(slots + token).to(tl.int64)
    tl.store(cache + (slot * HEADS + head) * D + d, rotated.to(tl.bfloat16), mask=(slot >= 0) & (d < D))


@triton.jit
def quantize(x, q, scales, n, FORMAT: tl.constexpr, LARGEST: tl.constexpr, GROUP: tl.constexpr):
    """fp8 with a scale for each group of a row."""
    row, group = tl.program_id(0), tl.program_id(1)
    column = group * GROUP + tl.arange(0, GROUP)
    value = tl.load(x + row * n + column, mask=column < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0), 1e-10) / LARGEST
    code = tl.minimum(tl.maximum(value / scale, -LARGEST), LARGEST)
    tl.store(q + row * n + column, code.to(FORMAT), mask=column < n)
    tl.store(scales + row * tl.num_programs(1) + group, scale)
