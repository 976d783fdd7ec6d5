"""Tests the calls that sample tokens: compares their tokens with the host's, and checks the fields of the next step.

The launch that computes the logits and keeps the largest ones runs with them, and the host samples from its logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.gpu.sampling import settings_of
from bringup.compile.gpu.trial.launches import Given
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.select.sampling import ADVANCED, DRAWN, LOGITS, Drawing
from bringup.compile.program.program import Draw
from bringup.compile.program.shares import token_of
from bringup.compile.schedule.costs import Cost
from bringup.graphs.core.step import BLOCK

# Sampling settings, used in turn: top-p, top-k and top-p, greedy, and all tokens.
DRAWS = (
    Draw(0.7, 0.9, 0.6180339887),
    Draw(1.3, 0.95, 0.7320508076, 20),
    Draw(0.0, 1.0, 0.0),
    Draw(1.0, 1.0, 0.4142135623),
)
# Half the width of the interval around the border of two tokens in which both are accepted: the device has float32
# weights, the host float64.
NEAR = 2.0**-16
HEAD = "head:"  # before the names of the buffers of the launch that computes the logits
CHANGED = tuple(name for name in ADVANCED if name != "block_table")


def draws_of(count: int, first: int) -> list[Draw]:
    """A draw for each of `count` sequences, from `DRAWS` in turn, starting with number `first`."""
    return [DRAWS[(first + row) % len(DRAWS)] for row in range(count)]


def calls_of(drawing: Drawing) -> list[KernelCall]:
    """The calls in order, with the names of the buffers of `buffers_of`."""

    def named(call: KernelCall) -> KernelCall:
        arguments = (
            Pointer(HEAD + each.buffer, each.offset) if isinstance(each, Pointer) and each.buffer != SCRATCH else each
            for each in call.arguments
        )
        return replace(call, arguments=tuple(arguments))

    return [*map(named, drawing.last), *drawing.after]


def buffers_of(
    logits: np.ndarray, fields: Mapping[str, np.ndarray], draws: Sequence[Draw], max_blocks: int,
    head: Mapping[str, Given], computed: str,
) -> dict[str, Given]:  # fmt: skip
    """The buffers of the calls, by name, for logits [B, V], the fields of a step and a draw for each sequence.

    `head`: the buffers of the launch that computes the logits, of which they are `computed`; none if it has no call.
    """
    table = fields["block_table"]
    wide = np.pad(table, ((0, 0), (0, max_blocks - table.shape[1])))
    fixed = {**settings_of(draws, len(logits)), "block_table": wide}
    found = {HEAD + name: given for name, given in head.items()}
    found[LOGITS] = head.get(computed) or Given(logits.nbytes, bytes_of(logits), LOGITS, changed=False)
    found |= {name: Given(each.nbytes, bytes_of(each), name, changed=False, fixed=True) for name, each in fixed.items()}
    found |= {
        name: Given(8 * len(logits), bytes_of(fields[name].astype(np.int64)), name, fixed=True) for name in CHANGED
    }
    return {**found, DRAWN: Given(8 * len(logits), None, DRAWN)}


def cost_of(logits: np.ndarray, fields: Mapping[str, np.ndarray], draws: Sequence[Draw], drawing: Drawing) -> Cost:
    """Bytes that the calls after the last launch move: `largest` reads all logits, `draw` those of rows not greedy."""
    sequences, used = len(logits), int(np.count_nonzero(fields["lengths"]))
    passes = sequences * (len(drawing.after) - 1) + sum(bool(draw.temperature) for draw in draws)
    return Cost(
        other=passes * logits[0].nbytes + sequences * (4 + 6 * 8) + 8 * used,
        written=8 * sequences + 8 * len(CHANGED) * used,
    )


def wrong(
    logits: np.ndarray, fields: Mapping[str, np.ndarray], draws: Sequence[Draw], found: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """A finding for each token that differs from the host's, and for each wrong field of the next step.

    `found` has the bytes of each buffer after the calls.
    """
    tokens = found[DRAWN].view(np.int64)
    for row, (draw, token) in enumerate(zip(draws, tokens.tolist(), strict=False)):
        expected = _tokens(logits[row].astype(np.float32), draw)
        if token not in expected:
            yield f"`{DRAWN}` has token {token} of sequence {row}; the host draws {min(expected)}"
    for name, expected in _advanced(fields, tokens).items():
        rows = np.flatnonzero(found[name].view(np.int64) != expected)
        if rows.size:
            yield f"`{name}` is not that of the next step, first of sequence {rows[0]}"


def _tokens(logits: np.ndarray, draw: Draw) -> set[int]:
    """The host's token, and the tokens that rounding to float32 can select. `logits`: [V]."""
    highest = logits.max()
    if not np.isfinite(highest):
        return {-1 if np.isnan(highest) else -2}
    shares = (draw.top_p,) if draw.top_p == 1 else (draw.top_p - NEAR, draw.top_p, draw.top_p + NEAR)
    numbers = draw.uniform - NEAR, draw.uniform, draw.uniform + NEAR
    near = (draw._replace(top_p=share, uniform=number) for share, number in product(shares, numbers))
    return {token_of(logits, each) for each in near}


def _advanced(fields: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The fields `CHANGED` of the next step. A sequence of length 0 is padding, and its fields do not change."""
    used = fields["lengths"] > 0
    positions = fields["positions"] + 1
    table = fields["block_table"]
    block = positions // BLOCK
    first = np.where(block < table.shape[1], table[np.arange(len(table)), np.minimum(block, table.shape[1] - 1)], 0)
    after = {
        "tokens": np.maximum(tokens, 0),
        "positions": positions,
        "slots": first * BLOCK + positions % BLOCK,
        "lengths": fields["lengths"] + 1,
        "totals": fields["totals"] + 1,
    }
    return {name: np.where(used, array, fields[name]) for name, array in after.items()}
