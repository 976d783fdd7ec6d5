"""The kernels that draw the next token of each sequence from logits, and advance the fields of its step."""

from __future__ import annotations

from bringup.compile.kernels.call import Constant, KernelCall, Operand, Pointer
from bringup.compile.kernels.code.types import POINTERS, kernel, power_of_two
from bringup.compile.kernels.select.scratch import workspace
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


def sampling_calls(dtype: str, sequences: int, vocab: int, max_blocks: int) -> tuple[KernelCall, ...]:
    """For logits [sequences, vocab], dense, of a decode entry whose block table has `max_blocks` columns.

    The buffers are `logits`, `drawn` (int64, the tokens), those of `SETTINGS`, and the `ADVANCED` fields of the step.
    """
    parts = -(-vocab // PART)
    (best,), end = workspace([parts * sequences * 8])
    logits: tuple[str, Operand] = (POINTERS[dtype], Pointer(LOGITS))
    rows: tuple[str, Operand] = (POINTERS["int64"], best)
    found, arguments = kernel("largest", [logits, rows], {"V": vocab, "BLOCK": PART}, num_warps=4)
    first = KernelCall(kernel=found, grid=(parts, sequences, 1), arguments=arguments, scratch=end)
    settings = [(POINTERS[kind], Pointer(name)) for name, kind in SETTINGS.items()]
    fields = [(POINTERS["int64"], Pointer(name)) for name in (*ADVANCED, DRAWN)]
    block = min(WIDE, max(128, power_of_two(vocab)))
    constants: dict[str, Constant] = {
        "V": vocab,
        "PARTS": parts,
        "WIDE": power_of_two(parts),
        "TABLE": max_blocks,
        "ROWS": BLOCK,
        "BLOCK": block,
    }
    # Of a row in one block, at most 4 logits to a lane of AMD's: with 8, scalar registers spill, which hold the masks.
    warps = 16 if vocab > WIDE else max(4, block // 256)
    found, arguments = kernel("draw", [logits, rows, *settings, *fields], constants, num_warps=warps)
    return first, KernelCall(kernel=found, grid=(sequences, 1, 1), arguments=arguments, scratch=end)
