"""Attention over caches, and products with weights in few bits, by seed: what other tests make, of random sizes."""

from __future__ import annotations

import numpy as np

from tests.kernels.attention import Case, data_of
from tests.llvm.native import run
from tests.llvm.test_quant import FORMS, Product

FLOATS = ("float32", "float32", "bfloat16", "float16")
Random = np.random.Generator


class Different(AssertionError):
    """A kernel gives something else than float64 does."""


def attention(random: Random, seed: int) -> tuple[str, float]:
    count = int(random.integers(1, 4))
    lengths = tuple(int(n) for n in random.integers(1, 190, count))
    decode = bool(random.random() < 0.5)
    groups = int(random.choice([1, 2]))
    case = Case(
        lengths=lengths, new=() if decode else tuple(int(random.integers(1, min(n, 40) + 1)) for n in lengths),
        heads=groups * int(random.choice([1, 2, 3])), groups=groups, channels=16, dtype=str(random.choice(FLOATS[:3])),
        window=int(random.choice([17, 50])) if random.random() < 0.3 else None,
        has_sinks=bool(random.random() < 0.2), seed=seed,
    )  # fmt: skip
    data = data_of(case)
    found = run(data.graph, data.buffers, "host", int(random.choice([1, 3]))).read("out")[: len(data.expected)]
    worst = np.abs(found.astype(np.float64) - data.expected).max() / np.abs(data.expected).max()
    bound = {"float32": 4e-6, "bfloat16": 8e-3}[case.dtype]
    if not worst <= bound:
        raise Different(f"attention, seed {seed}: {worst}, {case}")
    return f"attention of {'decode' if decode else 'prefill'}", float(worst / bound)


def quantised(random: Random, seed: int) -> tuple[str, float]:
    form = str(random.choice(["q4_0", "q4_1", "q4_k", "q6_k", "int4", "int8-groups", "mxfp4", "fp8-blocks", "nf4"]))
    rows = int(random.choice([1, 1, 3, 13]))
    product = Product(form, rows, columns=8 * int(random.integers(1, 8)), channels=256 * int(random.integers(1, 3)))
    assert form in FORMS
    wanted = product.x @ product.weight.numbers.T + product.f.arrays["b"].astype(np.float64)
    found = product.found(str(random.choice(["host", "generic"])), int(random.choice([1, 3]))).astype(np.float64)
    worst = np.abs(found - wanted).max() / np.abs(wanted).max() / 4e-6
    if not worst <= 1:
        raise Different(f"quant_linear of {form}, seed {seed}: {worst}")
    return f"quant_linear of {form}", float(worst)
