"""Launches of the kernels of kernels.py on odd shapes, with their results in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from bringup.compile import ptx

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
F16, F32, S8, S32 = (np.dtype(kind) for kind in ("f2", "f4", "i1", "i4"))
EXACT = 0.0
FP32 = 3e-6  # relative L2: sums of float32 in another order than float64
BF16_ROUNDED = 4e-3  # bf16 has 8 bits: rounding the result is 2e-3 at most on average
ATTENTION = 8e-3  # the shares are rounded to bf16 as well
TF32 = 2e-3  # operands have 10 bits

Start = Callable[..., ptx.Run]
Result = tuple[str, np.ndarray, np.ndarray, float]  # shape in words, result, reference, tolerance


def random(*shape: int, kind: np.dtype = F32) -> np.ndarray:
    seed = np.random.default_rng(sum(shape))
    if kind == S8:
        return seed.integers(-128, 128, shape).astype(S8)
    return seed.standard_normal(shape).astype(np.float32).astype(kind)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def error(result: np.ndarray, reference: np.ndarray) -> float:
    """Relative L2; infinite where the result is not finite."""
    if not np.isfinite(wide(result)).all():
        return float("inf")
    return float(np.linalg.norm(wide(result) - reference) / (np.linalg.norm(reference) or 1.0))


def fresh(nbytes: int = 1 << 22) -> ptx.Device:
    return ptx.Device(nbytes)


def rms_norm(start: Start) -> Iterator[Result]:
    for rows, n in ((5, 1024), (3, 784), (1, 16)):
        device, x, weight = fresh(), random(rows, n, kind=BF16), random(n, kind=BF16)
        out = device.alloc(x.nbytes, "out")
        start(device, (rows,), device.put(x, "x"), device.put(weight, "weight"), out, n, n, 1e-5)
        root = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5)
        yield f"{rows}x{n}", device.read(out, BF16, (rows, n)), wide(x) / root * wide(weight), BF16_ROUNDED


def gemv(start: Start) -> Iterator[Result]:
    for n, k in ((80, 1040), (48, 512), (16, 16)):
        device, x, weight = fresh(), random(k, kind=BF16), random(n, k, kind=BF16)
        out = device.alloc(4 * n, "out")
        start(device, (-(-n // 8),), device.put(x, "x"), device.put(weight, "weight"), out, n, k)
        yield f"{n}x{k}", device.read(out, F32, (n,)), wide(weight) @ wide(x), FP32


def gemm(
    kind: np.dtype, out: np.dtype, tolerance: float, *, rows_of_b: bool = False, tile: int = 64
) -> Callable[[Start], Iterator[Result]]:
    def check(start: Start) -> Iterator[Result]:
        for m, n, k in ((80, 48, 352), (tile, tile, 32)):
            device, a, b = fresh(), random(m, k, kind=kind), random(k, n, kind=kind)
            stored = b if rows_of_b else np.ascontiguousarray(b.T)
            c = device.alloc(m * n * out.itemsize, "c")
            strides = (1, n) if rows_of_b else (k, 1)
            grid = (-(-m // tile), -(-n // tile))
            start(device, grid, device.put(a, "a"), device.put(stored, "b"), c, m, n, k, *strides)
            yield f"{m}x{n}x{k}", device.read(c, out, (m, n)), wide(a) @ wide(b), tolerance

    return check


def gemm_descriptors(start: Start) -> Iterator[Result]:
    for m, n, k in ((144, 80, 416), (128, 128, 64)):
        device, a, b = fresh(), random(m, k, kind=BF16), random(n, k, kind=BF16)
        c = device.alloc(m * n * 2, "c")
        start(device, (-(-m // 128), -(-n // 128)), device.put(a, "a"), device.put(b, "b"), c, m, n, k)
        yield f"{m}x{n}x{k}", device.read(c, BF16, (m, n)), wide(a) @ wide(b).T, BF16_ROUNDED


def flash(start: Start) -> Iterator[Result]:
    for tokens, heads in ((201, 2), (1, 1)):
        device = fresh()
        q, k, v = (random(heads, tokens, 64, kind=BF16) + BF16.type(place) for place in range(3))
        out = device.alloc(q.nbytes, "out")
        inputs = device.put(q, "q"), device.put(k, "k"), device.put(v, "v")
        start(device, (-(-tokens // 64), heads), *inputs, out, tokens, tokens * 64, 0.125)
        score = wide(q) @ wide(k).transpose(0, 2, 1) * 0.125
        score[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        share = np.exp(score - score.max(2, keepdims=True))
        expected = share / share.sum(2, keepdims=True) @ wide(v)
        yield f"{heads}x{tokens}", device.read(out, BF16, q.shape), expected, ATTENTION


def decode(start: Start) -> Iterator[Result]:
    for length in (300, 37, 129):
        device, pages = fresh(), 24
        q, k, v = (
            random(64, kind=BF16),
            random(pages, 16, 64, kind=BF16),
            random(pages, 16, 64, kind=BF16) * BF16.type(2),
        )
        table = np.random.default_rng(length).permutation(pages).astype(S32)
        work = device.alloc(4 * 4 * 64, "part"), device.alloc(4 * 8, "sums"), device.put(np.zeros(1, S32), "count")
        out = device.alloc(128, "out")
        inputs = (
            device.put(q, "q"),
            device.put(k, "keys"),
            device.put(v, "values"),
            device.put(table[: -(-length // 16)], "table"),
        )
        start(device, (4,), *inputs, device.put(np.asarray([length], S32), "context"), *work, out, 0.125)
        key, value = (wide(cache)[table].reshape(-1, 64)[:length] for cache in (k, v))
        share = np.exp(key @ wide(q) * 0.125)
        yield f"context {length}", device.read(out, BF16, (64,)), share / share.sum() @ value, BF16_ROUNDED


def softmax_argmax(start: Start) -> Iterator[Result]:
    for rows, n in ((3, 1008), (2, 16)):
        device, x = fresh(), random(rows, n)
        x[0, [3, 11]] = 9.0
        out, best = device.alloc(x.nbytes, "probability"), device.alloc(4 * rows, "best")
        start(device, (rows,), device.put(x, "logits"), out, best, n, n)
        power = np.exp(wide(x) - x.max(1, keepdims=True))
        yield f"{rows}x{n}", device.read(out, F32, x.shape), power / power.sum(1, keepdims=True), FP32
        yield f"{rows}x{n} best", device.read(best, S32, (rows,)), wide(x.argmax(1)), EXACT


def histogram(start: Start) -> Iterator[Result]:
    n = 1000
    device, ids, weight = fresh(), np.random.default_rng(1).integers(0, 64, n).astype(S32), random(n)
    outs = [device.put(np.zeros(64, kind), name) for name, kind in (("counts", S32), ("sums", F32), ("largest", S32))]
    start(device, (4,), device.put(ids, "ids"), device.put(weight, "weight"), *outs, n)
    yield "counts", device.read(outs[0], S32, (64,)), wide(np.bincount(ids, minlength=64)), EXACT
    yield "sums", device.read(outs[1], F32, (64,)), np.bincount(ids, wide(weight), 64), FP32
    last = np.asarray([max(np.flatnonzero(ids == each), default=0) for each in range(64)])
    yield "largest", device.read(outs[2], S32, (64,)), wide(last), EXACT


def grid_barrier(start: Start) -> Iterator[Result]:
    n = 8 * 256 - 112
    device, x = fresh(), np.abs(random(n)) + 1
    out, part = device.alloc(4 * n, "out"), device.alloc(32, "part")
    start(device, (8,), device.put(x, "x"), part, device.put(np.zeros(1, S32), "count"), out, n)
    yield f"{n}", device.read(out, F32, (n,)), wide(x) / wide(x).sum(), FP32


def rope(start: Start) -> Iterator[Result]:
    tokens, heads, d = 5, 3, 64
    device, x = fresh(), random(tokens, heads, d, kind=BF16)
    angle = np.outer(np.arange(tokens) + 100, 1e4 ** (-np.arange(32) / 32))
    slots = np.asarray([7, 2, -1, 9, 0], S32)
    cache = device.put(np.zeros((10, heads, d), BF16), "cache")
    cosine, sine = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    start(
        device,
        (tokens, heads),
        device.put(x, "x"),
        device.put(cosine, "cosine"),
        device.put(sine, "sine"),
        device.put(slots, "slots"),
        cache,
    )
    low, high, c, s = wide(x)[..., :32], wide(x)[..., 32:], wide(cosine)[:, None], wide(sine)[:, None]
    rotated = np.concatenate([low * c - high * s, high * c + low * s], -1)
    expected = np.zeros((10, heads, d))
    expected[slots[slots >= 0]] = rotated[slots >= 0]
    yield "5 tokens", device.read(cache, BF16, expected.shape), expected, BF16_ROUNDED


def quantize(kind: np.dtype, largest: float) -> Callable[[Start], Iterator[Result]]:
    def check(start: Start) -> Iterator[Result]:
        rows, n, groups = 3, 400, 4
        device, x = fresh(), random(rows, n, kind=BF16)
        x[1, :128] = 0
        q, scales = device.alloc(rows * n, "q"), device.alloc(4 * rows * groups, "scales")
        start(device, (rows, groups), device.put(x, "x"), q, scales, n)
        padded = np.zeros((rows, groups * 128))
        padded[:, :n] = wide(x)
        top = np.maximum(np.abs(padded).reshape(rows, groups, 128).max(2), 1e-10) / largest
        scale = device.read(scales, F32, (rows, groups))
        yield "scales", scale, top, FP32
        codes = (padded.reshape(rows, groups, 128).astype(F32) / scale[..., None]).reshape(rows, -1)[:, :n]
        expected = codes.clip(-largest, largest).astype(kind)
        yield "codes", device.read(q, kind, (rows, n)), wide(expected), EXACT

    return check
