"""One step of several sequences: blocks for its writes, the entry point, the results of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bringup.compile.program.program import Draw, Entry, Executor, Interface, TokenExecutor, close_executor
from bringup.compile.program.step_inputs import Chunk, chunks_of, make_step
from bringup.compile.runtime.blocks import BlockPool, block_digest
from bringup.compile.runtime.parts import Cached, Part, Results, chunk_of, inputs_of
from bringup.diagnostics import fail
from bringup.graphs.core.step import BLOCK


class Engine:
    """The sequences of one executor.

    A step that fails leaves the caches undefined: `reset`, and recompute every sequence. `share_blocks`: sequences with
    a common prefix use the same blocks, if the states permit it and depend on tokens alone; they can then be rewound by
    complete blocks only.
    """

    def __init__(
        self, manifest: Mapping[str, Any], executor: Executor, interface: Interface, *, share_blocks: bool
    ) -> None:
        self.executor = executor
        self.interface = interface
        self.max_seq_len: int = manifest["max_seq_len"]
        self.max_input_len: int | None = manifest.get("max_input_len")
        self.recompute_lengths: list[int] = manifest["recompute_lengths"]
        self.states_vary_past: int | None = manifest.get("states_vary_past")
        self.prefill_sizes = interface.prefill_sizes()
        self.max_prefill_sequences = max(entry.num_sequences for entry in interface.entries if not entry.decode)
        self.pool = BlockPool(interface.num_blocks - 1)  # the last one is for padding
        contiguous = any(entry.contiguous for entry in interface.entries)
        paged = all(state.kind == "paged" for state in interface.sequence_states)
        self.recurrent = interface.recurrent
        by_tokens = not any(entry.token_inputs for entry in interface.entries)
        self.share_blocks = share_blocks and paged and by_tokens and not contiguous
        self._rows = list(range(interface.max_batch_size))

    @property
    def executor(self) -> Executor:
        """The object that runs the steps. A new executor begins with a complete step."""
        return self._executor

    @executor.setter
    def executor(self, executor: Executor) -> None:
        self._executor = executor
        self._drawing = executor if isinstance(executor, TokenExecutor) else None  # a slow check, done once
        self._continued: tuple[str, list[Chunk]] | None = None  # the step that the executor can continue from
        self._is_open = True

    def shut_down(self) -> None:
        """Closes the executor: steps and `reset` raise BU617 from now on. A second call has no effect."""
        self._is_open = False
        close_executor(self.executor)

    def _check_open(self) -> None:
        if not self._is_open:
            raise fail("BU617", "the executor is closed", help="load the bundle again: its memory was freed")

    @property
    def max_tokens(self) -> int:
        """The longest sequence: the context, or the capacity of all blocks if that is smaller."""
        return min(self.max_seq_len, self.pool.count * BLOCK)

    def reset(self) -> None:
        """Removes all sequences."""
        self._check_open()
        self.pool.clear()
        self._rows = list(range(self.interface.max_batch_size))
        self.executor.reset()

    # --- sequences and their blocks

    def open(self) -> Cached | None:
        """A new sequence; None if the largest number of sequences is open."""
        return Cached(self._rows.pop(0)) if self._rows else None

    def close(self, cached: Cached) -> None:
        """Releases a sequence's row and its blocks. Full blocks can be found until they are allocated again."""
        self.rewind(cached, 0)
        self._rows.append(cached.row)

    def rewind(self, cached: Cached, count: int) -> None:
        """Keeps the first `count` tokens and their blocks.

        The states of later tokens are masked, and overwritten. Recurrent states do not change: only tokens that they do
        not contain can then be removed, or all.
        """
        assert count % BLOCK == 0 or count >= len(cached.digests) * BLOCK, "another sequence may read the block"
        removed = max(len(cached.tokens) - count, 0)
        assert not (self.recurrent and count) or removed <= cached.again, "recurrent states contain the tokens"
        cached.again = max(cached.again - removed, 0)
        blocks = -(-count // BLOCK)
        for block in reversed(cached.blocks[blocks:]):
            self.pool.release(block)
        del cached.tokens[count:], cached.blocks[blocks:], cached.digests[count // BLOCK :]

    def settle(self, cached: Cached, count: int, total: int) -> None:
        """Makes the first `count` tokens final, and removes the others."""
        self.rewind(cached, count)
        self._publish(cached, total)

    def outgrown(self, total: int) -> int:
        """The number of the model's `recompute_lengths` that a sequence of `total` tokens exceeds."""
        return sum(total > length for length in self.recompute_lengths)

    def varies(self, total: int) -> bool:
        """Whether the states of a token depend on the length of its sequence when it was processed: dynamic rope."""
        return self.states_vary_past is not None and total > self.states_vary_past

    def uniform(self, total: int) -> int:
        """See `Session.uniform`."""
        lengths = [*self.recompute_lengths, *([] if self.states_vary_past is None else [self.states_vary_past])]
        longest = min([self.max_tokens, *(length for length in lengths if length >= total)])
        return min(longest - total, 0) if self.varies(total) else longest - total

    def missing(self, cached: Cached, total: int) -> int:
        """The number of further blocks that a sequence needs for `total` tokens."""
        return max(-(-min(total, self.max_tokens) // BLOCK) - len(cached.blocks), 0)

    def reserve(self, cached: Cached, count: int) -> bool:
        """Reserves blocks for `count` more tokens. Returns False, and reserves none, if too few are free."""
        needed = self.missing(cached, len(cached.tokens) + count)
        if needed > self.pool.num_free:
            return False
        cached.blocks += (block for _ in range(needed) if (block := self.pool.allocate()) is not None)
        return True

    def next_digest(self, cached: Cached, tokens: Sequence[int]) -> bytes | None:
        """The digest of the first block that is not full yet, for a sequence that begins with `tokens`.

        None if the block will not be full before the last of `tokens`, which must be computed for its logits, or if no
        other sequence can use it.
        """
        shareable = self.share_blocks and not self.varies(len(tokens))
        return self._digest(cached, tokens) if shareable and (len(cached.digests) + 1) * BLOCK < len(tokens) else None

    def share(self, cached: Cached, tokens: Sequence[int]) -> None:
        """Shares the blocks of other sequences that contain the next of `tokens`, as many as there are."""
        while len(cached.tokens) == len(cached.digests) * BLOCK == len(cached.blocks) * BLOCK:
            digest = self.next_digest(cached, tokens)
            block = None if digest is None else self.pool.find(digest)
            if digest is None or block is None:
                return
            cached.tokens += tokens[len(cached.tokens) : len(cached.tokens) + BLOCK]
            cached.blocks.append(block)
            cached.digests.append(digest)

    # --- steps

    def prefill_size(self, count: int) -> int:
        """The length of the prefill entry for the next of `count` tokens."""
        return next(chunks_of(count, self.prefill_sizes))[1]

    def prefill(self, parts: Sequence[Part]) -> list[Results]:
        """Processes several tokens of each sequence, whose blocks are reserved. Results in the order of `parts`.

        For one token of each, `decode` avoids padding.
        """
        return self._step(parts, decode=all(len(part.tokens) == 1 for part in parts))

    def catch_up(self, cached: Cached, count: int) -> None:
        """Processes the tokens of a sequence that its recurrent states do not contain, unless the step of `count` more
        can."""
        if cached.again and cached.again + count > max(self.prefill_sizes):
            self.decode([Part(cached, [], len(cached.tokens))])

    def decode(self, parts: Sequence[Part]) -> list[Results]:
        """Processes one token of each sequence, whose blocks are reserved. Results in the order of `parts`.

        With recurrent states, more tokens if some must be processed again or are proposals.
        """
        return self._step(parts, decode=True)

    def can_draw(self, sequences: Sequence[Cached]) -> bool:
        """Whether the executor samples the tokens of a decode step with these sequences."""
        count = len(sequences)
        if self._drawing is None or any(each.again for each in sequences):
            return False
        return self._drawing.can_draw(self._entry(count, count, decode=True).name)

    def draw(self, parts: Sequence[Part], draws: Sequence[Draw]) -> list[int]:
        """As `decode`, with a sampled token for each sequence; see `TokenExecutor.draw`.

        If each sequence continues with the token that was sampled for it last, in the blocks that it has, the executor
        continues by itself.
        """
        executor, entry = self._drawing, self._entry(len(parts), len(parts), decode=True)
        assert executor is not None
        self._check_open()
        chunks = list(map(chunk_of, parts))
        continues = self._continued == (entry.name, chunks) and executor.can_continue(entry.name, draws)
        self._continued = None
        step = None if continues else make_step(chunks, entry, self.interface)
        rewindable = self.interface.rewindable != 0  # the step after this one may turn out not to be wanted
        ahead = rewindable and all(
            self._may_go_on(chunk) and not draw.temperature for chunk, draw in zip(chunks, draws, strict=True)
        )
        tokens = executor.draw(entry.name, step, draws, ahead=ahead)
        for part in parts:
            self._taken(part)
            part.cached.longest = max(part.cached.longest, len(part.cached.tokens) + ahead)
        after = [
            Chunk([token], each.length, each.blocks, each.row, each.total + 1)
            for each, token in zip(chunks, tokens, strict=True)
        ]
        self._continued = entry.name, after
        return tokens

    def _may_go_on(self, chunk: Chunk) -> bool:
        """Whether the blocks of a sequence have a row for the token after this one."""
        return chunk.length < min(len(chunk.blocks) * BLOCK, self.max_tokens)

    def _entry(self, tokens: int, sequences: int, *, decode: bool, proposals: bool = False) -> Entry:
        """The smallest entry for these numbers of tokens and sequences; with `proposals`, one that does not store the
        recurrent states after them."""
        decode = decode and not proposals
        entries = (entry for entry in self.interface.entries if entry.decode is decode and entry.proposals >= proposals)
        fitting = [each for each in entries if each.num_tokens >= tokens and each.num_sequences >= sequences]
        return min(fitting, key=lambda each: (each.num_tokens, each.num_sequences))

    def _step(self, parts: Sequence[Part], *, decode: bool) -> list[Results]:
        self._check_open()
        behind = [part.cached for part in parts if part.cached.again and self.varies(part.total)]
        if behind:  # a step of their own: keys of the next one are others
            self._step([Part(cached, [], len(cached.tokens)) for cached in behind], decode=True)
        counts = [len(part.processed) for part in parts]
        count = sum(counts)
        proposals = self.recurrent and any(part.certain is not None for part in parts)
        entry = self._entry(count, len(parts), decode=decode and count == len(parts), proposals=proposals)
        step = make_step(list(map(chunk_of, parts)), entry, self.interface) | inputs_of(entry, parts)
        results = self.executor.step(entry.name, step)
        for part in parts:
            self._taken(part)
        return self._split(parts, counts, results)

    def _taken(self, part: Part) -> None:
        """Records the tokens that a step has written."""
        cached = part.cached
        cached.tokens += part.tokens
        cached.again = len(part.tokens) - part.certain if self.recurrent and part.certain is not None else 0
        cached.longest = max(cached.longest, len(cached.tokens) - cached.again)
        if part.certain is None:
            self._publish(cached, part.total)

    def _publish(self, cached: Cached, total: int) -> None:
        """Computes the digests of full blocks, by which they can then be found."""
        while self.share_blocks and (full := len(cached.digests)) < len(cached.tokens) // BLOCK:
            cached.digests.append(self._digest(cached, cached.tokens))
            if not self.varies(total):
                self.pool.publish(cached.blocks[full], cached.digests[full])

    def _digest(self, cached: Cached, tokens: Sequence[int]) -> bytes:
        full = len(cached.digests)
        first = f"{cached.outgrown} {cached.lora}" if cached.lora is not None else f"{cached.outgrown}"
        before = cached.digests[-1] if full else first.encode()
        return block_digest(before, tokens[full * BLOCK : (full + 1) * BLOCK])

    def _split(self, parts: Sequence[Part], counts: Sequence[int], results: Mapping[str, np.ndarray]) -> list[Results]:
        """The rows of each part, of which the step processed so many tokens: of hidden states a row for each of its own
        tokens, of logits as the program returns them."""
        ends = np.cumsum(counts).tolist()
        spans = [slice(end - len(part.tokens), end) for part, end in zip(parts, ends, strict=True)]
        logits = results["logits"].astype(np.float32)
        rows = spans if self.interface.all_logits else [slice(index, index + 1) for index in range(len(parts))]
        hidden = {name: array for name, array in results.items() if name != "logits"}
        return [
            Results(logits[row], {name: array[span] for name, array in hidden.items()})
            for row, span in zip(rows, spans, strict=True)
        ]
