"""The kernels that draw the next token of each sequence from logits, and advance the fields of its step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bringup.compile.kernels.call import Constant, KernelCall, Operand, Pointer
from bringup.compile.kernels.code.types import POINTERS, kernel, power_of_two
from bringup.compile.kernels.scratch import COUNTERS, counters
from bringup.graphs.core.step import BLOCK

LOGITS, DRAWN = "logits", "drawn"
SETTINGS = {
    "inverse": "float32",
    "nucleus": "int64",
    "uniform": "int64",
    "top_k": "int64",
}  # of each, see source/draw.py
ADVANCED = ("tokens", "positions", "slots", "block_table", "lengths", "totals")  # fields that are read or written
PART = 1024  # logits of a program that looks for the largest
WIDE = 2048  # logits that all threads of a program read at a time
# Of a row, see `keep_largest`: so few that a warp reads them at once, so many that few programs add to one at a time.
SLOTS = 32
MOST_SEQUENCES = COUNTERS // (8 * SLOTS)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The calls of a step that draws tokens: `last` in place of those of its last launch, then `after`.

    `last` store the same logits, and keep the largest of each row in slots. They are empty if no kernel does both:
    then the last launch is that of any step, and the first call of `after` fills the slots.
    """

    last: tuple[KernelCall, ...]
    after: tuple[KernelCall, ...]

    def every_call(self) -> Iterator[KernelCall]:
        """All calls, in order."""
        yield from self.last
        yield from self.after


def slots_of(sequences: int) -> tuple[Pointer, int]:
    """The address of the slots of a batch's rows, which are counters, and their bytes. At most MOST_SEQUENCES."""
    nbytes = 8 * SLOTS * sequences
    place = counters(nbytes)
    assert place is not None
    return place, nbytes


def sampling_calls(
    dtype: str, sequences: int, vocab: int, max_blocks: int, *, filled: bool = False
) -> tuple[KernelCall, ...]:
    """For logits [sequences, vocab], dense, of a decode entry whose block table has `max_blocks` columns.

    The buffers are `logits`, `drawn` (int64, the tokens), those of `SETTINGS`, and the `ADVANCED` fields of the step.
    `filled`: the launch that computes the logits fills the slots, so no call does. At most MOST_SEQUENCES.
    """
    best, end = slots_of(sequences)
    logits: tuple[str, Operand] = (POINTERS[dtype], Pointer(LOGITS))
    slots: tuple[str, Operand] = (POINTERS["int64"], best)
    constants: dict[str, Constant] = {"V": vocab, "SLOTS": SLOTS, "BLOCK": PART}
    found, arguments = kernel("largest", [logits, slots], constants, num_warps=4)
    first = KernelCall(kernel=found, grid=(-(-vocab // PART), sequences, 1), arguments=arguments, scratch=end)
    settings = [(POINTERS[kind], Pointer(name)) for name, kind in SETTINGS.items()]
    fields = [(POINTERS["int64"], Pointer(name)) for name in (*ADVANCED, DRAWN)]
    block = min(WIDE, max(128, power_of_two(vocab)))
    constants = {"V": vocab, "SLOTS": SLOTS, "TABLE": max_blocks, "ROWS": BLOCK, "BLOCK": block}
    # Of a row in one block, at most 4 logits to a lane of AMD's: with 8, scalar registers spill, which hold the masks.
    warps = 16 if vocab > WIDE else max(4, block // 256)
    found, arguments = kernel("draw", [logits, slots, *settings, *fields], constants, num_warps=warps)
    drawn = KernelCall(kernel=found, grid=(sequences, 1, 1), arguments=arguments, scratch=end)
    return (drawn,) if filled else (first, drawn)
