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
        self.runs: list[ptx.Run] = [machine.run(call, compiled[call.kernel]) for call in calls]
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


@pytest.mark.parametrize("count", [3, 5, 7, 10, 12])
def test_a_nucleus_of_equal_logits(count: int) -> None:
    """A nucleus that ends between two equal tokens: the host and the device have as many of them.

    Five of 0.2: one token, for the decimal 0.2 is a fifth. Twelve of 0.5: six tokens.
    """
    row = np.full(40, -np.inf, np.float32)
    row[3 : 3 + count] = 1.5
    shares = [0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 1 / 3, 0.9]
    draws = [Draw(1.0, share, 0.999) for share in shares]
    wanted = [next_token(row, 1.0, share, cast(np.random.Generator, Constant(0.999))) for share in shares]
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
