"""Test steps for every entry point of a program: full ones, and ragged ones with padding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import Entry, Executor, Interface
from bringup.compile.program.step_inputs import Chunk, chunks_of, make_step
from bringup.compile.schedule.graph.op_graph import Buffer
from bringup.graphs.core.step import BLOCK

MOST = 300  # tokens of a sequence before a decode step: several cache blocks, and several parts of split attention
BEFORE = 21  # tokens before a second chunk: one cache block and a part of the next


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step of an entry point. `tokens` and `sequences` are the numbers without padding.

    `keys`: the mean number of keys that a sequence has in its caches after the step.
    """

    interface: Interface
    entry: Entry
    arrays: Mapping[str, np.ndarray]
    tokens: int
    sequences: int
    keys: int

    @property
    def padded(self) -> bool:
        """Whether the step has padding: fewer tokens or sequences than its entry point."""
        return self.tokens < self.entry.num_tokens or self.sequences < self.entry.num_sequences

    def real(self, buffer: Buffer, flat: np.ndarray) -> np.ndarray:
        """A buffer without the rows of padding: of tokens, of sequences or of caches. `flat`: its elements."""
        array = flat.reshape(buffer.shape)
        if not buffer.shape:
            return array
        rows = buffer.shape[0]
        if buffer.kind == "state":
            parts = self.interface.num_blocks if rows % self.interface.num_blocks == 0 else self.interface.num_rows
            return array[: rows - rows // parts]
        for size, real in ((self.entry.num_tokens, self.tokens), (self.entry.num_sequences, self.sequences)):
            if rows % size == 0:
                return array[: rows // size * real]
        return array


def rows_of_step(arrays: Mapping[str, np.ndarray], blocks: int) -> np.ndarray:
    """Mask [blocks * BLOCK]: the rows of a paged cache with keys of the step's sequences, and the padding block's."""
    rows = np.zeros(blocks * BLOCK, np.bool_)
    rows[-BLOCK:] = True
    for table, length in zip(arrays["block_table"], arrays["lengths"], strict=True):
        keys = np.arange(int(length))
        rows[table[keys // BLOCK] * BLOCK + keys % BLOCK] = True
    return rows


def trial_steps(
    interface: Interface, vocabulary: int, executor: Executor, names: Collection[str] = ()
) -> Iterator[TrialStep]:
    """Two steps of each entry point, or of those with these names. Before a step is yielded, `executor` has processed
    the tokens before it.

    Cache blocks are in a random order if the program allows it. Tokens are random, below `vocabulary`, and equal in
    every run.
    """
    for entry in interface.entries:
        for full in (True, False) if not names or entry.name in names else ():
            found = _Maker(interface, vocabulary, executor).step(entry, full=full)
            if found is not None:
                yield found


class _Maker:
    """Sequences of random tokens for one step."""

    def __init__(self, interface: Interface, vocabulary: int, executor: Executor) -> None:
        self._interface, self._vocabulary, self._executor = interface, vocabulary, executor
        self._random = np.random.default_rng(0)
        free = np.arange(interface.num_blocks - 1)
        if not any(entry.contiguous for entry in interface.entries):
            free = self._random.permutation(free)
        self._free: list[int] = free.tolist()

    def step(self, entry: Entry, *, full: bool) -> TrialStep | None:
        """A step of an entry point, or None if its sequences do not fit into the caches."""
        self._executor.reset()
        sequences = entry.num_sequences if full else max(entry.num_sequences - 1, 1)
        longest = min(self._interface.max_blocks, len(self._free) // sequences) * BLOCK
        counts, firsts = self._lengths(entry, sequences, longest, full=full)
        if min(counts) < 1:
            return None
        chunks = [
            self._chunk(row, first, count, proposals=count // 2 if entry.proposals else None)
            for row, (first, count) in enumerate(zip(firsts, counts, strict=True))
        ]
        arrays = make_step(chunks, entry, self._interface) | self._inputs(entry)
        keys = sum(chunk.length for chunk in chunks) // sequences
        return TrialStep(self._interface, entry, arrays, sum(counts), sequences, keys)

    def _lengths(self, entry: Entry, sequences: int, longest: int, *, full: bool) -> tuple[list[int], list[int]]:
        """For each sequence, its number of tokens in the step, and its number of tokens before."""
        if entry.decode:
            most = min(longest - 1, MOST)
            return [1] * sequences, [max(most - 7 * row, 1) for row in range(sequences)]
        total = entry.num_tokens if full else max(entry.num_tokens - 3, 1)
        counts = [total // sequences] * sequences
        for row in range(0, sequences - 1, 2):  # ragged: every second sequence is shorter, its neighbour longer
            moved = min(counts[row] // 3, counts[row + 1])
            counts[row], counts[row + 1] = counts[row] - moved, counts[row + 1] + moved
        counts[-1] += total - sum(counts)
        before = 0 if full else BEFORE
        return [min(count, longest - before) for count in counts], [before] * sequences

    def _chunk(self, row: int, first: int, count: int, proposals: int | None) -> Chunk:
        needed = -(-(first + count) // BLOCK)
        blocks = [self._free.pop(0) for _ in range(needed)]
        tokens = self._random.integers(0, self._vocabulary, first + count).tolist()
        self._take_in(row, tokens[:first], blocks, first + count)
        certain = None if proposals is None else count - proposals
        return Chunk(tokens[first:], first, blocks, row, first + count, certain)

    def _take_in(self, row: int, tokens: list[int], blocks: list[int], total: int) -> None:
        """Runs the tokens before the step, with the prefill entry points for one sequence."""
        done = 0
        for count, size in chunks_of(len(tokens), self._interface.prefill_sizes()):
            entry = next(
                each
                for each in self._interface.entries
                if not each.decode and (each.num_tokens, each.num_sequences) == (size, 1)
            )
            chunk = Chunk(tokens[done : done + count], done, blocks, row, total)
            self._executor.step(entry.name, make_step([chunk], entry, self._interface) | self._inputs(entry))
            done += count

    def _inputs(self, entry: Entry) -> dict[str, np.ndarray]:
        """The inputs of an entry point besides the fields: values of a normal distribution, or zeros for integers."""
        found: dict[str, np.ndarray] = {}
        for spec in entry.inputs:
            dtype = dtype_of(spec.dtype)
            whole = dtype.kind in "iub"
            drawn = np.zeros(spec.shape) if whole else self._random.standard_normal(spec.shape)
            found[spec.name] = drawn.astype(dtype)
        return found
