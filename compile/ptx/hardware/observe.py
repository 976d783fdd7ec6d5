"""Observer: the base class of what observes a launch. Every event has an empty method, which an observer can override.

In every event `index` or `relative` are byte offsets whose shape broadcasts to (B, T), `mask` is the active lanes
(None: all), and `size` is the bytes of one lane's access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bringup.compile.ptx.assembly.kernel import Instruction
    from bringup.compile.ptx.hardware.context import Context, Launch

Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_] | None


class Observer:
    """Observes one launch; `name` is the attribute of `Run` that holds `result()`."""

    name = ""

    # the launch

    def begin(self, launch: Launch) -> None:
        """Before the first block runs."""

    def attach(self, context: Context) -> None:
        """The blocks of a context begin."""

    def split(self, context: Context, part: Context, rows: NDArray[np.int64]) -> None:
        """The blocks `rows` of a context continue in a new context, `part`."""

    def finish(self, launch: Launch) -> None:
        """After the last block has ended."""

    def result(self) -> Any:
        """The findings, as plain data."""

    # memory

    def read_global(self, context: Context, instruction: Instruction, index: Offsets, mask: Mask, size: int) -> None:
        """A load; `index` is relative to the start of device memory."""

    def write_global(
        self, context: Context, instruction: Instruction, index: Offsets, mask: Mask, size: int, values: list[Any]
    ) -> None:
        """A store, before it is performed."""

    def atomic_global(
        self,
        context: Context,
        instruction: Instruction,
        index: Offsets,
        mask: NDArray[np.bool_],
        size: int,
        order: str,
        served: NDArray[np.int64],
    ) -> None:
        """An atomic operation with memory order `order`, before it is performed. `served`: active lanes in order."""

    def read_shared(self, context: Context, instruction: Instruction, relative: Offsets, mask: Mask, size: int) -> None:
        """A load; `relative` is relative to the start of the block's shared memory."""

    def write_shared(
        self, context: Context, instruction: Instruction, relative: Offsets, mask: Mask, size: int, values: list[Any]
    ) -> None:
        """A store, before it is performed. `values` are its elements; empty if they are not known."""

    # asynchronous reads and writes of tiles, by the tensor cores and the copy engine

    def read_operand(
        self,
        context: Context,
        instruction: Instruction,
        rows: NDArray[np.int64],
        groups: NDArray[np.int64],
        tile: Offsets,
        size: int,
    ) -> None:
        """wgmma reads `tile`, offsets of elements in shared memory, in block `rows[i]` for warp group `groups[i]`."""

    def commit_operands(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        """wgmma.commit_group."""

    def wait_operands(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        """wgmma.wait_group: waits for all groups but the last `pending`."""

    def issue_tensor_load(
        self, context: Context, instruction: Instruction, row: int, thread: int, barrier: int, tile: Offsets, size: int
    ) -> None:
        """A thread starts a tensor copy to shared memory, whose bytes are counted by a barrier object."""

    def issue_tensor_store(
        self, context: Context, instruction: Instruction, row: int, thread: int, tile: Offsets, size: int
    ) -> None:
        """A thread starts a tensor copy from shared memory."""

    def issue_copy(self, context: Context, instruction: Instruction, relative: Offsets, mask: Mask, size: int) -> None:
        """cp.async starts a write to shared memory."""

    def commit_copies(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        """cp.async.commit_group."""

    def wait_copies(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        """cp.async.wait_group: waits for all groups of the thread but the last `pending`; before they complete."""

    def commit_tensor_stores(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        """cp.async.bulk.commit_group."""

    def wait_tensor_stores(self, context: Context, instruction: Instruction, pending: int, mask: Mask) -> None:
        """cp.async.bulk.wait_group: all groups of the thread but the last `pending` have read shared memory."""

    def move_tile(
        self,
        context: Context,
        instruction: Instruction,
        row: int,
        thread: int,
        index: Offsets,
        size: int,
        *,
        store: bool,
    ) -> None:
        """A tensor copy of a thread of block `row` reads or writes elements of `size` bytes of device memory."""

    def store_map(self, context: Context, instruction: Instruction, row: int, thread: int, offset: int) -> None:
        """A warp of block `row` stores a tensor map of 128 bytes at an offset in device memory, before it is stored."""

    # order

    def barrier(self, context: Context, lanes: Mask, instruction: Instruction) -> None:
        """A barrier releases `lanes`."""

    def arrive(
        self, context: Context, instruction: Instruction, row: int, threads: NDArray[np.int64], barrier: int
    ) -> None:
        """Threads of block `row` arrive at a barrier object, before its phase may end."""

    def end_phase(self, context: Context, row: int, barrier: int) -> None:
        """The phase of a barrier object ends."""

    def pass_phase(
        self, context: Context, instruction: Instruction, row: int, threads: NDArray[np.int64], barrier: int
    ) -> None:
        """Threads of block `row` observe that a phase has ended."""

    def wait_for_launches(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        """griddepcontrol.wait: the writes of earlier launches are visible."""

    def fence(self, context: Context, instruction: Instruction, mask: Mask) -> None:
        """fence.* or membar.*"""
