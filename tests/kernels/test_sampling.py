"""Sampling on the device: its tokens against those of the host, and the fields of the next step."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import ml_dtypes
import numpy as np
import pytest

from bringup.compile import ptx
from bringup.compile.cache.store import default_store
from bringup.compile.gpu.sampling import settings_of
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.select.sampling import ADVANCED, DRAWN, LOGITS, sampling_calls
from bringup.compile.program.program import Draw
from bringup.compile.runtime.sampling import draw_of, next_token
from bringup.graphs.core.step import BLOCK
from tests.kernels.emulated import Emulated

ROWS, TABLE = 3, 4
NEAR = 2.0**-17  # of a border between two tokens, weights of float32 may give the other; docs/schedule-and-kernels.md
NUMPY = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


class Drawn:
    """One run of the kernels over logits [B, V], with the fields of a decode step."""

    def __init__(self, logits: np.ndarray, dtype: str, draws: list[Draw], lengths: list[int]) -> None:
        sequences, vocab = logits.shape
        table = np.arange(sequences * TABLE).reshape(sequences, TABLE)[:, ::-1].copy()
        positions = np.array(lengths) - 1
        self.fields = {
            "tokens": np.full(sequences, 7),
            "positions": positions,
            "slots": np.array([table[row, at // BLOCK] * BLOCK + at % BLOCK for row, at in enumerate(positions)]),
            "block_table": table,
            "lengths": np.array(lengths),
            "totals": np.array(lengths),
        }
        calls = sampling_calls(dtype, sequences, vocab, TABLE)
        compiled = compile_kernels([call.kernel for call in calls], "sm_90", default_store())
        given = {LOGITS: logits, DRAWN: np.zeros(sequences, np.int64), **settings_of(draws, sequences), **self.fields}
        machine = Emulated(given, max(call.scratch for call in calls))
        self.runs: list[ptx.Run] = [
            machine.run(call, compiled[call.kernel], is_counting=call is not calls[-1]) for call in calls
        ]
        self.tokens = machine.read(DRAWN).tolist()
        self.advanced = {name: machine.read(name) for name in ADVANCED}


@pytest.mark.parametrize(("dtype", "vocab"), [("float32", 1300), ("bfloat16", 97)])
def test_tokens_of_the_host(dtype: str, vocab: int) -> None:
    """Greedy, and by the same uniform numbers; bfloat16 logits have many that are equal."""
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((8, vocab))).astype(NUMPY[dtype])
    settings = [(0.0, 1.0), (1.0, 1.0), (0.7, 0.9), (2.0, 0.5), (0.05, 1.0), (1e-30, 0.5), (1e9, 0.999), (1.5, 1e-12)]
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    draws = [Draw(heat, share, ours.random() if heat else 0.0) for heat, share in settings]
    wanted = [
        next_token(row.astype(np.float32), heat, share, theirs)
        for row, (heat, share) in zip(logits, settings, strict=True)
    ]
    assert Drawn(logits, dtype, draws, [1] * 8).tokens == wanted


def test_shares_of_equal_logits() -> None:
    """Four equal tokens: quarters of the uniform numbers; half of the mass is the first two."""
    logits = np.full((8, 40), -np.inf, np.float32)
    logits[:, [3, 11, 12, 39]] = 0.5
    uniform = [0.0, 0.249, 0.25, 0.5, 0.999, 0.0, 0.499, 0.5]
    draws = [Draw(1.0, 1.0 if row < 5 else 0.5, value) for row, value in enumerate(uniform)]
    assert Drawn(logits, "float32", draws, [1] * 8).tokens == [3, 3, 11, 12, 39, 3, 3, 11]


def by_definition(row: np.ndarray, draw: Draw) -> int:
    """In float64: sort, the first `top_k`, softmax, the nucleus, and the inverse of the distribution that is left.

    Asserts that no sum is near a share of it, where weights of float32 may give another token.
    """
    order = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))
    if not draw.temperature:
        return order[0]
    order = order[: draw.top_k or None]
    weights = np.exp((row[order].astype(np.float64) - float(row[order[0]])) / draw.temperature)
    sums = np.cumsum(weights) / weights.sum()
    size = int(np.sum(sums < draw.top_p)) + 1 if draw.top_p < 1 else len(order)
    shares = sums[:size] / sums[size - 1]
    assert draw.top_p == 1 or np.abs(sums - draw.top_p).min() > NEAR
    assert np.abs(shares[:-1] - draw.uniform).min(initial=1.0) > NEAR
    return order[int(np.sum(shares <= draw.uniform))]


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize(
    ("dtype", "vocab"), [("float32", 97), ("bfloat16", 1300), pytest.param("float32", 2500, marks=pytest.mark.slow)]
)
def test_the_first_tokens(dtype: str, vocab: int, share: float) -> None:
    """In one block and in two, neither full; rounded to halves, so that equal logits are on both sides of the cut.

    The last of the tokens that are left, or one that is random.
    """
    random = np.random.default_rng(7)
    limits = [1, 2, 5, 60, vocab - 1, vocab, vocab + 1, 10**30]
    logits = (np.round(2 * random.standard_normal((2 * len(limits), vocab))) / 2).astype(NUMPY[dtype])
    draws = [Draw(0.7, share, random.random(), limit) for limit in limits]
    draws += [Draw(2.0, share, 0.99995, limit) for limit in limits]
    rows = logits.astype(np.float32)
    wanted = [by_definition(row, draw) for row, draw in zip(rows, draws, strict=True)]
    theirs = [next_token(row, d.temperature, share, at(d.uniform), d.top_k) for row, d in zip(rows, draws, strict=True)]
    assert Drawn(logits, dtype, draws, [1] * len(draws)).tokens == wanted == theirs
    greedy = [draw._replace(temperature=0.0) for draw in draws]
    assert Drawn(logits, dtype, greedy, [1] * len(draws)).tokens == rows.argmax(1).tolist()


def test_a_cut_between_equal_logits() -> None:
    """-0 equals 0: of tokens 3, 11, 12 and 39 the first three, each a third; then their nucleus; then as many as are.

    More than are finite, in a row that is no whole block: what is beyond it is no token.
    """
    logits = np.full((8, 40), -np.inf, np.float32)
    logits[:, [3, 11, 12, 39]] = [0.0, -0.0, 0.0, -0.0]
    settings = [(1.0, 3, 0.33), (1.0, 3, 0.34), (1.0, 3, 0.67), (1.0, 3, 0.999), (0.6, 3, 0.999), (1.0, 2, 0.999),
                (1.0, 5, 0.999), (0.4, 39, 0.999)]  # fmt: skip
    draws = [Draw(1.0, share, number, count) for share, count, number in settings]
    found = Drawn(logits, "float32", draws, [1] * 8).tokens
    assert found == [3, 11, 12, 12, 11, 11, 39, 11]
    assert found == [by_definition(row, draw) for row, draw in zip(logits, draws, strict=True)]


def test_every_place_in_order() -> None:
    """Negative and positive logits of equal weights: the last of the first so many tokens, and each place of all."""
    row = np.random.default_rng(2).permutation(np.arange(-48, 49, dtype=np.float32) / 8)
    order = np.argsort(-row).tolist()
    last = [Draw(1e9, 1.0, 0.999, count) for count in range(1, 98)]
    every = [Draw(1e9, 1.0, (place + 0.5) / 97) for place in range(97)]
    for draws in (last, every):
        assert Drawn(np.stack([row] * 97), "float32", draws, [1] * 97).tokens == order


@pytest.mark.parametrize("heat", [1e-30, 1e9])
def test_the_first_tokens_at_the_ends_of_the_temperature(heat: float) -> None:
    """Where all weights but the largest are 0, and where all are equal."""
    logits = np.random.default_rng(1).standard_normal((4, 300)).astype(np.float32)
    order = np.argsort(-logits, axis=1)
    draws = [Draw(heat, 1.0, number, 7) for number in (0.01, 0.45, 0.7, 0.99)]
    places = [0, 3, 4, 6] if heat > 1 else [0] * 4
    assert Drawn(logits, "float32", draws, [1] * 4).tokens == [order[row, at] for row, at in enumerate(places)]


@pytest.mark.parametrize("count", [3, 5, 7, 10, 12])
def test_a_nucleus_of_equal_logits(count: int) -> None:
    """A nucleus that ends between two equal tokens: the host and the device have as many of them.

    Five of 0.2: one token, for the decimal 0.2 is a fifth. Twelve of 0.5: six tokens.
    """
    row = np.full(40, -np.inf, np.float32)
    row[3 : 3 + count] = 1.5
    shares = [0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 1 / 3, 0.9]
    draws = [Draw(1.0, share, 0.999) for share in shares]
    wanted = [next_token(row, 1.0, share, at(0.999)) for share in shares]
    assert wanted == [3 + math.ceil(Fraction(share).limit_denominator(10) * count) - 1 for share in shares]
    assert Drawn(np.stack([row] * 8), "float32", draws, [1] * 8).tokens == wanted


def test_settings_in_half_precision() -> None:
    """numpy's half-precision numbers give the settings of the same Python numbers."""
    half = draw_of(np.float16(0.75), np.float16(0.5), np.random.default_rng(1))  # type: ignore[arg-type]
    found, wanted = (settings_of([each], 1) for each in (half, draw_of(0.75, 0.5, np.random.default_rng(1))))
    assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in wanted.items()}


class Constant:
    """A generator of one number."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        return self._number


def at(number: float) -> np.random.Generator:
    return cast(np.random.Generator, Constant(number))


def test_logits_without_a_largest() -> None:
    logits = np.zeros((5, 40), np.float32)
    logits[0, 5] = np.nan
    logits[1, 5] = np.inf
    logits[2] = -np.inf
    logits[3, 5] = -np.inf
    logits[4, :5] = -0.0
    assert Drawn(logits, "float32", [Draw(0.0, 1.0, 0.0)] * 5, [1] * 5).tokens == [-1, -2, -2, 0, 0]


def test_fields_of_the_next_step() -> None:
    """Within a block, into the next block of the table, padding, and a sequence that is full."""
    logits = np.eye(4, 40, dtype=np.float32)
    lengths = [10, BLOCK, 0, TABLE * BLOCK]
    found = Drawn(logits, "float32", [Draw(0.0, 1.0, 0.0)] * 4, lengths)
    fields, advanced = found.fields, found.advanced
    assert found.tokens == [0, 1, 2, 3]
    assert advanced["tokens"].tolist() == [0, 1, 7, 3]
    for name in ("positions", "lengths", "totals"):
        assert (advanced[name] - fields[name]).tolist() == [1, 1, 0, 1]
    table = fields["block_table"]
    assert advanced["slots"].tolist()[:3] == [table[0, 0] * BLOCK + 10, table[1, 1] * BLOCK, fields["slots"][2]]
    assert np.array_equal(advanced["block_table"], table)
    assert sum(run.bytes.read for run in found.runs if run.bytes) < 3 * logits.nbytes + 4096
