"""Program: a kernel, parsed from PTX text, that can be launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
"""The default number of threads that run in lockstep: so many that numpy's overhead per call is small."""

MAX_STEPS = 2_000_000
"""The number of basic blocks after which a launch is treated as a deadlock."""


@dataclass(slots=True)
class Run:
    """The result of a launch. `instructions` is the sum over all lanes; `steps` counts basic blocks.

    `bytes`, `banks`, `races`, `order`, `unwritten`, `early` and `last_store` are the results of the observers with
    these names; None without that observer.
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

    Raises `Malformed` if the text is not PTX, and `Unsupported` for an instruction, a modifier or a directive that the
    emulator does not support: nothing is ignored silently. `early_reads` describes the instructions that read a
    register before the wgmma that writes it was waited for.
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
        """The number of threads per block."""
        return self.kernel.threads

    @property
    def waits(self) -> bool:
        """Whether the kernel waits until the previous launch has ended (PTX ISA, `griddepcontrol`)."""
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
        """Runs the kernel to its end, for a grid with one to three sizes in thread blocks.

        `arguments`: the bytes of each parameter. `shared`: bytes of dynamic shared memory. `watch`: observers, whose
        results are attributes of the result. `copies`: asynchronous copies complete at the "latest" or the "earliest"
        moment that hardware may choose. `seed`: permutes thread blocks, the lanes of atomics and the order of warps.
        `exact`: sums of matrix products are rounded once; otherwise they are float32 sums. `in_turns`: the warps of a
        block run one after the other, each until it waits or ends; otherwise in lockstep. `lanes`: threads that run in
        lockstep. `max_steps`: basic blocks before a deadlock is assumed.

        Raises `Fault` for an access that is out of bounds or misaligned, for a deadlock, for a trap, and for arguments
        that do not match the parameters; ValueError for another value of `copies`.
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
        """The parameter block. Raises `Fault` if the arguments do not match the parameters."""
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
        """The addresses of the module's tables, which are copied to a device once."""
        if device not in self._tables:
            self._tables[device] = {
                name: np.int64(device.put(np.frombuffer(table.data, np.uint8), name))
                for name, table in self.kernel.tables.items()
            }
        return self._tables[device]


@lru_cache(maxsize=128)
def program_of(text: str) -> Program:
    """The program of a kernel's PTX. A bundle has about 25 kernels; the cache serves a bundle that is opened again."""
    return Program(text)
