"""Context: the state of thread blocks that run in lockstep.

A register has one value for all lanes: an array whose shape broadcasts to (B, T), for B blocks of T threads. So a value
that all lanes share has shape (), one per block (B, 1), and one per thread (1, T).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bringup.compile.ptx.assembly.errors import Fault
from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.hardware.copies import Barriers, Pending
from bringup.compile.ptx.hardware.memory import LocalMemory, SharedMemory

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.device import Device
    from bringup.compile.ptx.hardware.observe import Observer

Lanes = NDArray[Any]
"""Values of lanes: an array, or a numpy scalar."""

Mask = NDArray[np.bool_] | None
"""The active lanes. None: all."""


@dataclass(slots=True, eq=False)
class Launch:
    """What all blocks of a launch share.

    `shared_bytes` is static and dynamic shared memory. `copies`: whether asynchronous copies complete at the "earliest"
    or the "latest" moment that hardware may choose. `random` permutes blocks, atomics and turns. `exact`: fused
    multiply-adds and sums of matrix products are rounded once. `steps` counts the basic blocks that ran. With
    `in_turns`, `turn` is the position (1, T) of each thread's warp in the order in which the warps of a block run;
    otherwise None.
    """

    kernel: Kernel
    device: Device
    grid: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    tables: dict[str, np.int64]
    observers: tuple[Observer, ...] = ()
    copies: str = "latest"
    random: np.random.Generator | None = None
    exact: bool = True
    in_turns: bool = False
    steps: int = 0
    turn: NDArray[np.int32] | None = field(init=False, default=None)
    thread: NDArray[np.int32] = field(init=False)
    lane: NDArray[np.int32] = field(init=False)
    warp: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.thread = np.arange(self.kernel.threads, dtype=np.int32)[None, :]
        self.lane, self.warp = self.thread % np.int32(32), self.thread // np.int32(32)
        if self.in_turns:
            self.turn = self._turns()

    def _turns(self) -> NDArray[np.int32]:
        """The turn of each thread. The four warps of a warp group, which compute wgmma together, have one turn."""
        together = 4 if any(each.opcode[0] == "wgmma" for each in self.kernel.instructions) else 1
        group = self.warp // np.int32(together)
        order = np.arange(group.max() + 1, dtype=np.int32)
        return order[group] if self.random is None else self.random.permutation(order)[group]

    def parameter(self, offset: int, dtype: Any) -> Any:
        """A scalar at `offset` of the parameter block."""
        return np.frombuffer(self.parameters, dtype, 1, offset)[0]


class Context:
    """Blocks that run in lockstep, and where their lanes are.

    `work` has the lanes at the start of each basic block (None: all), `waiting` those at a barrier. `alive` are the
    lanes that have not returned (None: all). `yielded` are the basic blocks that spin and wait for other contexts.
    """

    __slots__ = (
        "alive",
        "block_count",
        "block_index",
        "blocks",
        "device",
        "launch",
        "local",
        "mbarriers",
        "pending",
        "registers",
        "shared",
        "thread_count",
        "waiting",
        "watched",
        "work",
        "yielded",
    )

    def __init__(self, launch: Launch, blocks: NDArray[np.int64]) -> None:
        self.launch, self.device = launch, launch.device
        self.blocks, self.block_count, self.thread_count = blocks, len(blocks), launch.kernel.threads
        self.block_index = _indices(blocks, launch.grid)
        self.registers: list[Any] = [None] * len(launch.kernel.registers)
        self.shared = SharedMemory(self.block_count, launch.shared_bytes)
        self.local = LocalMemory(self.block_count, self.thread_count, launch.kernel.local_bytes)
        self.pending, self.mbarriers = Pending(), Barriers(self.block_count)
        self.watched: dict[Any, Any] = {}
        self.work: dict[int, Mask] = {0: None}
        self.waiting: list[Any] = []
        self.alive: Mask = None
        self.yielded: set[int] = set()
        this: Any = self
        for observer in launch.observers:
            observer.attach(this)

    def rows(self, rows: NDArray[np.int64]) -> Context:
        """The blocks with indices `rows` as a new context, without work. No lane may wait at a barrier."""
        part = object.__new__(Context)
        part.launch, part.device, part.thread_count = self.launch, self.device, self.thread_count
        part.blocks, part.block_count = self.blocks[rows], len(rows)
        part.block_index = _indices(part.blocks, self.launch.grid)
        part.registers = [self._cut(value, rows) for value in self.registers]
        part.shared, part.local = self.shared.rows(rows), self.local.rows(rows)
        part.pending, part.mbarriers = self.pending.rows(rows), self.mbarriers.rows(rows)
        part.alive = self._cut(self.alive, rows)
        part.watched, part.work, part.waiting, part.yielded = {}, {}, [], set()
        this: Any = self
        both: tuple[Any, Any] = (this, part)
        for observer in self.launch.observers:
            observer.split(*both, rows)
        return part

    def _cut(self, value: Any, rows: NDArray[np.int64]) -> Any:
        """The rows of a value, if it has one row per block."""
        per_block = self.block_count > 1 and np.ndim(value) == 2 and len(value) == self.block_count
        return value[rows] if per_block else value

    def full(self, value: Any) -> Lanes:
        """A view of the value with its full shape (B, T)."""
        shape = self.block_count, self.thread_count
        return value if getattr(value, "shape", None) == shape else np.broadcast_to(value, shape)

    def fault(self, instruction: Instruction, message: str, lanes: Mask = None) -> NoReturn:
        """Raises Fault with the kernel, the source line, the PTX and the lanes."""
        kernel = self.launch.kernel
        raise Fault(
            f"{kernel.name}: {message}\n"
            f"  at {kernel.where(instruction)}: {instruction.text} (PTX line {instruction.ptx_line})\n"
            f"  {self._lanes(lanes)}"
        )

    def _lanes(self, lanes: Mask) -> str:
        rows, threads = np.nonzero(self.full(True if lanes is None else lanes))
        names = [f"block {self.blocks[row]} thread {thread}" for row, thread in zip(rows[:4], threads[:4], strict=True)]
        return ", ".join(names) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")


def _indices(blocks: NDArray[np.int64], grid: tuple[int, int, int]) -> dict[str, NDArray[np.int32]]:
    """`%ctaid` of each block, as (B, 1)."""
    x, y, _ = grid
    places = {"x": blocks % x, "y": blocks // x % y, "z": blocks // (x * y)}
    return {axis: place.astype(np.int32)[:, None] for axis, place in places.items()}
