"""Modules and launches of the emulated driver. A cubin is replaced by its PTX, which is executed."""

from __future__ import annotations

import ctypes
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.compile.gpu.emulated_driver.memory import Memory
from bringup.compile.gpu.emulated_driver.status import (
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    NO_BINARY,
    NOT_FOUND,
    Refused,
    call,
)
from bringup.compile.ptx import Program, program_of
from bringup.compile.ptx.assembly.errors import PtxError
from bringup.compile.ptx.hardware.cubin import kernels_of

# Maximum shared memory of a block in bytes, by compute capability (CUDA programming guide, table of technical
# specifications: 163, 99, 227 KB).
SHARED_LIMITS = {(8, 0): 166_912, (8, 6): 101_376, (8, 9): 101_376, (12, 0): 101_376}
SHARED_LIMIT, SHARED_DEFAULT = 232_448, 49_152
EARLY = 9, 0  # the first capability on which a kernel may start while the previous one runs
GRID_X, GRID_YZ = 2**31 - 1, 65_535


@dataclass(slots=True, eq=False)
class LoadedModule:
    """A loaded cubin: the program of its PTX, and the name of its kernel."""

    program: Program
    name: str
    alive: bool = True


@dataclass(slots=True, eq=False)
class LoadedFunction:
    """A kernel of a module. `allowed`: maximum dynamic shared memory of a launch, in bytes."""

    module: LoadedModule
    allowed: int = SHARED_DEFAULT


@dataclass(frozen=True, slots=True)
class Ran:
    """A completed launch: the kernel's name, the result of `Program.launch`, and the emulation time in seconds."""

    name: str
    grid: tuple[int, int, int]
    run: Any
    seconds: float


class Kernels(Memory):
    """cuModule…, cuFunc…, cuLaunchKernelEx."""

    def __init__(
        self,
        programs: Mapping[str, str],
        capability: tuple[int, int],
        nbytes: int,
        observers: Callable[[], Sequence[Any]] = tuple,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """A device of a compute capability, with `nbytes` of memory.

        `programs`: the PTX of each cubin, by the SHA-256 of the cubin. `observers` returns the observers of a launch.
        `settings`: further arguments of `Program.launch`, such as `copies` and `seed`.
        """
        super().__init__(nbytes)
        self._programs = programs
        self.capability, self.observers, self._settings = capability, observers, dict(settings or {})
        self.listeners: list[Callable[[Ran], None]] = []

    @property
    def shared_limit(self) -> int:
        """Maximum shared memory of a block, in bytes."""
        return SHARED_LIMITS.get(self.capability, SHARED_LIMIT)

    @call
    def cuModuleLoadData(self, image: bytes) -> Any:
        self.not_capturing()
        digest = hashlib.sha256(image).hexdigest()
        if digest not in self._programs:
            raise Refused(NO_BINARY, "the cubin is not part of the bundle, so its PTX is unknown")
        program = _program(self._programs[digest])
        _check_table(image, program)
        return self.CUmodule(self.new(LoadedModule(program, program.kernel.name)))

    @call
    def cuModuleUnload(self, module: Any) -> None:
        loaded: LoadedModule = self.found(module, LoadedModule)
        loaded.alive = False
        functions = [key for key, each in self._handles.items() if isinstance(each, LoadedFunction)]
        for key in (int(module), *(key for key in functions if self._handles[key].module is loaded)):
            del self._handles[key]

    @call
    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        loaded: LoadedModule = self.found(module, LoadedModule)
        if loaded.name != name.decode():
            raise Refused(NOT_FOUND, f"the module has `{loaded.name}`, not `{name.decode()}`")
        return self.CUfunction(self.new(LoadedFunction(loaded)))

    @call
    def cuFuncLoad(self, function: Any) -> None:
        self.found(function, LoadedFunction)

    @call
    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> None:
        loaded: LoadedFunction = self.found(function, LoadedFunction)
        shared = self.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if int(attribute) != int(shared) or value > self.shared_limit:
            raise Refused(INVALID_VALUE, f"attribute {int(attribute)} cannot be {value}: {self.shared_limit} at most")
        loaded.allowed = value

    @call
    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: Any) -> None:
        loaded: LoadedFunction = self.found(function, LoadedFunction)
        program, module = loaded.module.program, loaded.module
        grid = int(config.gridDimX), int(config.gridDimY), int(config.gridDimZ)
        block = int(config.blockDimX), int(config.blockDimY), int(config.blockDimZ)
        shared = int(config.sharedMemBytes)
        if block != (program.kernel.threads, 1, 1):
            message = f"a block of {math.prod(block)} threads; `{module.name}` has {program.kernel.threads}"
            raise Refused(INVALID_VALUE, message)
        if shared > loaded.allowed:
            raise Refused(INVALID_VALUE, f"{shared} bytes of shared memory; {loaded.allowed} are allowed")
        if int(config.numAttrs) and not (program.waits and self.capability >= EARLY):
            raise Refused(INVALID_VALUE, f"`{module.name}` starts early, and does not wait for the kernel before it")
        if min(grid) < 1 or grid[0] > GRID_X or max(grid[1:]) > GRID_YZ:
            raise Refused(INVALID_VALUE, f"a grid of {grid}")
        arguments = _values(parameters, [each.size for each in program.kernel.parameters.values()])
        self.queue(config.hStream).put(lambda: self._run(module, grid, arguments, shared))

    def _run(self, module: LoadedModule, grid: tuple[int, int, int], arguments: list[bytes], shared: int) -> None:
        if not module.alive:
            raise Refused(INVALID_HANDLE, f"the module of `{module.name}` was unloaded before the launch ran")
        start = time.perf_counter()
        watch = list(self.observers())
        run = module.program.launch(self.device, grid, arguments, shared=shared, watch=watch, **self._settings)
        ran = Ran(module.name, grid, run, time.perf_counter() - start)
        for listener in self.listeners:
            listener(ran)


def _program(text: str) -> Program:
    """The parsed PTX."""
    try:
        return program_of(text)
    except PtxError as error:
        raise Refused(INVALID_PTX, str(error)) from error


def _values(parameters: int, sizes: Sequence[int]) -> list[bytes]:
    """The bytes of the arguments, copied during the call, as the driver does. `sizes` are in bytes."""
    if not parameters:
        raise Refused(INVALID_VALUE, "a launch without arguments")
    table = (ctypes.c_void_p * max(len(sizes), 1)).from_address(int(parameters))
    return [ctypes.string_at(table[number] or 0, size) for number, size in enumerate(sizes)]


def _check_table(image: bytes, program: Program) -> None:
    """Raises Refused unless the cubin's parameter table and block size equal those of its PTX."""
    kernel = program.kernel
    try:
        found = kernels_of(image).get(kernel.name)
    except ValueError as error:
        raise Refused(INVALID_IMAGE, str(error)) from error
    if found is None:
        raise Refused(INVALID_IMAGE, f"the cubin has no kernel `{kernel.name}`")
    parameters = [(each.offset, each.size) for each in kernel.parameters.values()]
    if found.parameters != parameters or found.block not in (None, (kernel.threads, 1, 1)):
        message = f"cubin and PTX of `{kernel.name}` disagree: {found.parameters}, {found.block}; {parameters}"
        raise Refused(INVALID_IMAGE, message)
