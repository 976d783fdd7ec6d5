"""The sequences of a step: their tokens and blocks, as arrays, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.compile.program.program import LORA_SLOTS, Entry
from bringup.compile.program.step_inputs import Chunk
from bringup.graphs.core.step import BLOCK

NO_INPUTS: Mapping[str, np.ndarray] = {}


@dataclass(slots=True)
class Cached:
    """The cached state of one sequence: its tokens, in its blocks, and its row of the per-sequence states.

    `digests` are those of its full blocks. `outgrown` is the number of the manifest's `recompute_lengths` that the
    sequence exceeds; keys computed for one number do not match queries of another. `longest` is the largest number of
    tokens that it has had. `again` is the number of its last tokens that recurrent states do not contain: they were
    proposals when they were processed, and the next step processes them again. `slot` is that of its LoRA, -1 for none,
    and `lora` the LoRA's number: blocks of different LoRAs cannot be shared.
    """

    row: int
    slot: int = -1
    lora: int | None = None
    outgrown: int = 0
    longest: int = 0
    again: int = 0
    tokens: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    digests: list[bytes] = field(default_factory=list[bytes])


class Part(NamedTuple):
    """The tokens of one sequence that a step processes, with the model's further inputs (a row for each token).

    `total`: tokens of the sequence after the complete prompt that these belong to. Tokens after the first `certain` are
    proposals, which may be removed again: the sequence is `settle`d before its next step. None: there are none.
    """

    cached: Cached
    tokens: Sequence[int]
    total: int
    inputs: Mapping[str, np.ndarray] = NO_INPUTS
    certain: int | None = None

    @property
    def processed(self) -> list[int]:
        """All tokens that the step processes: those that must be processed again, and `tokens`."""
        cached = self.cached
        return [*cached.tokens[len(cached.tokens) - cached.again :], *self.tokens]


class Results(NamedTuple):
    """The results of one part: logits, float32 [R, V], of its last token or of all; hidden states by name, [N, m]."""

    logits: np.ndarray
    hidden: dict[str, np.ndarray]


def chunk_of(part: Part) -> Chunk:
    """The tokens of a sequence in a step, with their blocks."""
    cached, length = part.cached, len(part.cached.tokens) + len(part.tokens)
    certain = None if part.certain is None else cached.again + part.certain
    first, blocks = len(cached.tokens) - cached.again, cached.blocks[: -(-length // BLOCK)]
    return Chunk(part.processed, first, blocks, cached.row, part.total, certain)


def inputs_of(entry: Entry, parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """The model's further inputs, those of all parts concatenated, in its dtype, padded to the entry's length."""
    found: dict[str, np.ndarray] = {}
    if entry.chooses_loras:
        slots = [part.cached.slot for part in parts]
        found[LORA_SLOTS] = np.array(slots + [-1] * (entry.num_sequences - len(slots)))
    for spec in entry.token_inputs:
        rows = np.concatenate([np.asarray(part.inputs[spec.name], numpy_dtype(spec.dtype)) for part in parts])
        found[spec.name] = np.pad(rows, ((0, spec.shape[0] - len(rows)), (0, 0)))
    return found
