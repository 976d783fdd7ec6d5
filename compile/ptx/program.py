"""Program: a kernel from PTX text, which can be launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from bringup.compile.ptx.assembly.errors import Fault
from bringup.compile.ptx.assembly.flow import basic_blocks
from bringup.compile.ptx.assembly.parser import parse
from bringup.compile.ptx.assembly.products import early_reads
from bringup.compile.ptx.hardware.context import Launch
from bringup.compile.ptx.hardware.observe import Observer
from bringup.compile.ptx.runner import Runner
from bringup.compile.ptx.translate.translator import translate

if TYPE_CHECKING:
    from bringup.compile.ptx.hardware.device import Device

LANES = 8192
"""Threads that run in step by default: large enough that numpy's cost for a call is small."""

MAX_STEPS = 2_000_000
"""Basic blocks after which a launch is taken for a deadlock."""


@dataclass(slots=True)
class Run:
    """What a launch did. `instructions` counts those of all lanes, `steps` basic blocks.

    `bytes`, `banks`, `races`, `order`, `unwritten`, `early` and `last_store` are the results of the observers of these
    names.
    """

    instructions: int = 0
    steps: int = 0
    bytes: Any = None
    banks: Any = None
    races: Any = None
    order: Any = None
    unwritten: Any = None
    early: Any = None
    last_store: Any = None


class Program:
    """A kernel, parsed and translated.

    Raises `Malformed` for text that is not PTX, and `Unsupported` for an instruction, a modifier or a directive that
    the emulator does not run: nothing is ever left out silently. `early_reads` are the instructions that read a
    register whose wgmma is not waited for, in words.
    """

    def __init__(self, text: str) -> None:
        self.kernel = parse(text)
        self._blocks = basic_blocks(self.kernel)
        self._functions = translate(self.kernel, self._blocks)
        self.early_reads = early_reads(self.kernel, self._blocks)
        self._tables: WeakKeyDictionary[Device, dict[str, np.int64]] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.kernel.threads

    @property
    def waits(self) -> bool:
        """Whether the kernel waits until the launch before it has ended (PTX ISA, "griddepcontrol")."""
        return any(each.base == "griddepcontrol" and each.has("wait") for each in self.kernel.instructions)

    def launch(
        self,
        device: Device,
        grid: Sequence[int],
        arguments: Sequence[bytes],
        *,
        shared: int = 0,
        watch: Sequence[Observer] = (),
        copies: str = "latest",
        seed: int | None = None,
        exact: bool = True,
        in_turns: bool = False,
        lanes: int = LANES,
        max_steps: int = MAX_STEPS,
    ) -> Run:
        """Runs the kernel for a grid of up to three sizes, to its end.

        `arguments` are the bytes of each parameter, `shared` the bytes of dynamic shared memory. `copies`: asynchronous
        copies happen at the "latest" or the "earliest" moment that hardware may choose. `seed` permutes thread
        blocks, the lanes of atomics and turns. `exact`: sums of matrix products are rounded once; without it they are
        sums of float32. `in_turns`: the warps of a block run one after the other, each until it waits or ends;
        without it they run in step. Raises `Fault` for an access out of bounds or not aligned, for a deadlock, and for
        a trap.
        """
        if copies not in ("latest", "earliest"):
            raise ValueError(f"copies is 'latest' or 'earliest', not {copies!r}")
        launch = Launch(
            kernel=self.kernel,
            device=device,
            grid=self._grid(grid),
            shared_bytes=self.kernel.dynamic_offset + shared,
            parameters=self._parameters(arguments),
            tables=self._tables_on(device),
            observers=tuple(watch),
            copies=copies,
            random=None if seed is None else np.random.default_rng(seed),
            exact=exact,
            in_turns=in_turns,
        )
        runner = Runner(launch, self._blocks, self._functions, max_steps)
        for observer in watch:
            observer.begin(launch)
        with np.errstate(all="ignore"):
            runner.run_grid(lanes)
        lengths = [block.end - block.start for block in self._blocks]
        executed = sum(count * length for count, length in zip(runner.visits, lengths, strict=True))
        run = Run(instructions=executed, steps=launch.steps)
        for observer in watch:
            observer.finish(launch)
            setattr(run, observer.name, observer.result())
        return run

    def _grid(self, grid: Sequence[int]) -> tuple[int, int, int]:
        if not 1 <= len(grid) <= 3 or any(size < 1 for size in grid):
            raise Fault(f"{self.name}: a grid has one to three sizes of at least 1, not {tuple(grid)}")
        x, y, z = (*(int(size) for size in grid), 1, 1)[:3]
        return x, y, z

    def _parameters(self, arguments: Sequence[bytes]) -> bytes:
        """The parameter block."""
        expected = list(self.kernel.parameters.values())
        if len(arguments) != len(expected):
            raise Fault(f"{self.name}: {len(arguments)} arguments, but {len(expected)} parameters")
        block = bytearray(self.kernel.parameter_bytes)
        for place, (parameter, value) in enumerate(zip(expected, arguments, strict=True)):
            if len(value) != parameter.size:
                raise Fault(f"{self.name}: argument {place} has {len(value)} bytes, its parameter {parameter.size}")
            block[parameter.offset : parameter.offset + parameter.size] = value
        return bytes(block)

    def _tables_on(self, device: Device) -> dict[str, np.int64]:
        """The addresses of the module's tables, which are put on a device once."""
        if device not in self._tables:
            self._tables[device] = {
                name: np.int64(device.put(np.frombuffer(table.data, np.uint8), name))
                for name, table in self.kernel.tables.items()
            }
        return self._tables[device]
