"""The arguments of a step: tokens of several sequences, packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bringup.graphs.core.step import BLOCK, FIELDS, CacheSizes

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program.program import Entry, Interface


class Chunk(NamedTuple):
    """The tokens of one sequence in a step.

    `first` is the position of the first of them. `blocks` are the indices of the sequence's cache blocks in order of
    positions, at least up to that of the last token. `row` is the sequence's row of the per-sequence caches. `total` is
    its number of tokens after the complete prompt. `certain` of its tokens are no proposals of a draft; None: all.
    """

    tokens: Sequence[int]
    first: int
    blocks: Sequence[int]
    row: int
    total: int
    certain: int | None = None

    @property
    def length(self) -> int:
        """The number of tokens in the cache after the step."""
        return self.first + len(self.tokens)


def chunks_of(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Splits the prefill of `count` tokens into runs: the number of tokens of each, and the length of its entry.

    The last run is padded. A longer entry is used only if it is at least half full: padding then costs at most as much
    as the prompt itself, and few lengths must be compiled.
    """
    while count:
        fitting = next((size for size in sorted(sizes) if count <= size <= 2 * count), None)
        size = fitting or max((size for size in sizes if size < count), default=min(sizes))
        taken = min(count, size)
        yield taken, size
        count -= taken


def checked_tokens(draft_tokens: int, recurrent: bool) -> int:
    """The largest number of tokens of a sequence in a step that checks so many proposals.

    With recurrent states, the proposals that were accepted in the step before precede the last token.
    """
    return 1 + draft_tokens * (1 + recurrent)


def make_step(chunks: Sequence[Chunk], entry: Entry, interface: Interface) -> dict[str, np.ndarray]:
    """The arrays of `Step`, by name, for one run of an entry, padded to its numbers of tokens and sequences.

    Raises ValueError for no chunks, for more tokens or sequences than the entry has, or, in decode, for a chunk of
    several tokens, or if an entry would store the recurrent states after proposals.
    """
    count = sum(len(chunk.tokens) for chunk in chunks)
    if not chunks or len(chunks) > entry.num_sequences or count > entry.num_tokens:
        room = f"1 to {entry.num_sequences} sequences and {entry.num_tokens} tokens"
        raise ValueError(f"`{entry.name}` expects {room}, not {len(chunks)} and {count}")
    if not all(len(chunk.tokens) == 1 if entry.decode else chunk.tokens for chunk in chunks):
        raise ValueError(f"`{entry.name}` expects {'one token' if entry.decode else 'tokens'} of each sequence")
    if interface.recurrent and not entry.proposals and any(chunk.certain is not None for chunk in chunks):
        raise ValueError(f"`{entry.name}` would store the states of proposals")
    padding = interface.num_blocks - 1, interface.num_rows - 1
    return packed(chunks, entry.num_tokens, entry.num_sequences, *padding)


def sequence_step(
    tokens: Sequence[int], first: int, size: int, context: int, total: int | None = None
) -> dict[str, np.ndarray]:
    """A step of one sequence whose cache blocks are in order, padded to `size` tokens: the arrays of `Step`, by name.

    The caches are those of one sequence of `context` tokens. `total` is the length of the complete prompt.
    """
    length, sizes = first + len(tokens), CacheSizes(context=context)
    chunk = Chunk(tokens, first, range(-(-length // BLOCK)), 0, total or length)
    return packed([chunk], size, 1, sizes.blocks - 1, sizes.rows - 1)


def packed(
    chunks: Sequence[Chunk], num_tokens: int, num_sequences: int, padding_block: int, padding_row: int
) -> dict[str, np.ndarray]:
    """The arrays of a step with these numbers of tokens and sequences, by name; see `make_step`.

    Padding tokens are written to the first row of the padding block, which is never read. Padding sequences have no
    tokens, except in decode, where each has one at position 0.
    """
    import numpy as np

    most = max(-(-chunk.length // BLOCK) for chunk in chunks)
    arrays: dict[str, np.ndarray] = {name: np.zeros(num_tokens, np.int64) for name in ("tokens", "positions", "slots")}
    arrays |= {name: np.zeros(num_sequences, np.int64) for name in ("rows", "lengths", "totals", "certain")}
    arrays["starts"] = np.zeros(num_sequences + 1, np.int64)
    arrays["block_table"] = np.full((num_sequences, most), padding_block)
    arrays["slots"][:], arrays["rows"][:] = padding_block * BLOCK, padding_row
    start = 0
    for index, chunk in enumerate(chunks):
        end, positions = start + len(chunk.tokens), np.arange(chunk.first, chunk.length)
        blocks = np.array(chunk.blocks[: -(-chunk.length // BLOCK)])
        arrays["tokens"][start:end], arrays["positions"][start:end] = chunk.tokens, positions
        arrays["slots"][start:end] = blocks[positions // BLOCK] * BLOCK + positions % BLOCK
        arrays["block_table"][index, : len(blocks)] = blocks
        arrays["rows"][index], arrays["lengths"][index], arrays["totals"][index] = chunk.row, chunk.length, chunk.total
        arrays["certain"][index] = len(chunk.tokens) if chunk.certain is None else chunk.certain
        start = end
        arrays["starts"][index + 1 :] = end
    return {name: arrays[name] for name in FIELDS}
