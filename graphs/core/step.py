"""Step: the calling convention of every program on every target, and the sizes of the caches that it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64  # cache rows for each entry of block_table
RING_GAIN = 4  # a ring has at most this fraction of the context's rows


@dataclass(frozen=True, slots=True)
class Step:
    """N tokens of B sequences, packed one sequence after the other, and padding after the last. All tensors int64.

    tokens[N]; positions[N]: of each token in its sequence; slots[N]: the row of the paged caches that each token's
    state is written to, for padding a row of the padding block; starts[B + 1]: sequence b has the tokens
    starts[b]:starts[b + 1], and tokens from starts[B] on are padding; block_table[B, P]: the numbers of the cache
    blocks of each sequence, in order of positions (entries beyond the end of a sequence are any valid number); rows[B]:
    the row of the per-sequence caches; lengths[B]: tokens of each sequence in the cache after this step; totals[B]:
    tokens after the complete prompt, of which this step may process a part (for rope that depends on the length of a
    sequence); certain[B]: how many of the tokens of each sequence are final, see `proposals`.

    Three fields are static, because the traced entry point determines them. `decode`: each sequence has exactly one
    token, so N = B and token b is that of sequence b. `contiguous`: there is one sequence, and its blocks are 0, 1, ….
    `proposals`: the tokens of a sequence after its first certain[b] are proposals of a draft, which may be removed. The
    per-sequence caches then contain the state after the certain ones, and are unchanged if there are none (zeros, or
    anything, if the sequence begins in this step). Without `proposals`, all tokens are certain.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    starts: Tensor
    block_table: Tensor
    rows: Tensor
    lengths: Tensor
    totals: Tensor
    certain: Tensor
    decode: bool = field(default=False, kw_only=True)
    contiguous: bool = field(default=False, kw_only=True)
    proposals: bool = field(default=False, kw_only=True)

    @property
    def num_sequences(self) -> int:
        """B, padding sequences among them."""
        return self.totals.shape[0]

    def sequences(self) -> Tensor:
        """The sequence number of each token, int64 [N]; that of padding is B."""
        import torch

        if self.decode:
            return torch.arange(self.num_sequences)
        return (torch.arange(self.tokens.shape[0])[:, None] >= self.starts[None, 1:]).long().sum(-1)

    def per_token(self, values_B: Tensor) -> Tensor:
        """For each token the value of its sequence [N]; padding has that of the last sequence."""
        if self.decode:
            return values_B
        if self.num_sequences == 1:
            return values_B.expand(self.tokens.shape[0])
        return values_B[self.sequences().clamp(max=self.num_sequences - 1)]

    def previous(self, state: Tensor) -> Tensor:
        """The rows of per-sequence states [R, …] before this step [B, …]: zeros for sequences that begin in it."""
        starting_B = self.lengths <= self.starts[1:] - self.starts[:-1]
        return state[self.rows].masked_fill(starting_B.view(-1, *[1] * (state.dim() - 1)), 0.0)

    def num_certain(self) -> Tensor:
        """The number of tokens of each sequence after which its state is stored, int64 [B]."""
        return self.certain if self.proposals else self.starts[1:] - self.starts[:-1]


# The tensors of a step in the order of a program's arguments; only `block_table` has a size that is not static.
FIELDS = ("tokens", "positions", "slots", "starts", "block_table", "rows", "lengths", "totals", "certain")


def step_shapes(num_tokens: int, num_sequences: int, num_blocks: int) -> dict[str, tuple[int, ...]]:
    """The shape of each of `FIELDS`; `num_blocks` is P."""
    n, b = (num_tokens,), (num_sequences,)
    shapes = (n, n, n, (num_sequences + 1,), (num_sequences, num_blocks), b, b, b, b)
    return dict(zip(FIELDS, shapes, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """The sizes of the caches, for `sequences` of up to `context` tokens. A step processes up to `chunk` tokens.

    `cache_blocks`: blocks of the paged caches, without that of padding; None is enough for all sequences at full
    length.
    """

    context: int
    sequences: int = 1
    chunk: int = 1
    cache_blocks: int | None = None

    @property
    def blocks_each(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.context // BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks of all sequences, and one more for padding, the last."""
        return (self.cache_blocks or self.sequences * self.blocks_each) + 1

    @property
    def slots(self) -> int:
        """Rows of a paged cache."""
        return self.blocks * BLOCK

    @property
    def rows(self) -> int:
        """Rows of a per-sequence cache; the last one is for padding."""
        return self.sequences + 1

    def ring(self, window: int | None) -> int | None:
        """Rows of each sequence's ring, for a cache with attention to the last `window` positions; None without one.

        The first query of a step reads its window after the last token of the step was written, so a ring has more rows
        than the window. Attention reads the complete ring, however short the sequence is, so it is used only if the
        context is at least four times as long.
        """
        if window is None:
            return None
        rows = -(-(window + self.chunk - 1) // BLOCK) * BLOCK
        return rows if RING_GAIN * rows <= self.blocks_each * BLOCK else None
