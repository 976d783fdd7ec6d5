"""An emulated HIP runtime below ctypes: a C library with HIP's signatures, on memory and streams of the emulated CUDA.

The metadata of a kernel's hsaco determines how its arguments are read. The same kernel compiled to PTX is executed.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from struct import unpack_from
from typing import Any

from bringup.compile.gpu.driver.hip import SHARED_OF_BLOCK
from bringup.compile.gpu.driver.hip_library import NAME
from bringup.compile.gpu.driver.names import CUDA, HIP
from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver
from bringup.compile.gpu.emulated_driver.status import INVALID_IMAGE, INVALID_VALUE, NO_BINARY, NOT_FOUND, Refused, call
from bringup.compile.kernels.code_object import CodeKernel, kernel_of
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.ptx import Program

SOURCE = Path(__file__).with_name("runtime.c")
NO_DEVICE, INVALID_DEVICE, GONE = 100, 101, 4  # hipErrorNoDevice, hipErrorInvalidDevice, hipErrorDeinitialized
LDS = 65_536  # bytes of shared memory that a block may have, of gfx90a and gfx942
ANSWER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)
)
# HIP's functions that are CUDA's by another name; the first context is that of the only device.
SAME = {getattr(HIP, field): getattr(CUDA, field) for field in HIP.__slots__ if field not in ("attribute", "load")}
CONTEXT = 0xC0
_ANSWERS: list[Any] = []  # ctypes does not hold them, and a session may call its library until the process ends


def build(folder: Path) -> Path:
    """The library, compiled into `folder`/lib against the header of HIP that Triton has."""
    spec = find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    headers = Path(spec.origin).parent / "backends" / "amd" / "include"
    (folder / "lib").mkdir(parents=True)
    file = folder / "lib" / NAME
    flags = ["-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", "-D__HIP_PLATFORM_AMD__", f"-I{headers}"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(file)], check=True)
    return file


@dataclass(slots=True, eq=False)
class Loaded:
    """An hsaco with the program that stands for its code, and the shared memory of that."""

    code: CodeKernel
    program: Program
    shared: int
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch as the runtime reads it: `arguments` are the bytes that the kernel finds, hidden ones apart."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[bytes, ...]


class EmulatedHip(EmulatedDriver):
    """One device of AMD's. `calls` are the names of HIP's functions in the order of their calls."""

    def __init__(self, library: ctypes.CDLL, kernels: Mapping[str, Compiled], name: str, nbytes: int) -> None:
        """`kernels` has the PTX of each kernel by the SHA-256 of its hsaco. `name`: `gfx942:sramecc+:xnack-`."""
        super().__init__({}, (8, 0), nbytes)
        self.device_name, self.release, self.count = name, (7, 1), 1
        self.calls: list[str] = []
        self.launches: list[Launched] = []
        self._kernels = kernels
        library.last_text.restype = ctypes.c_void_p
        self._text = int(library.last_text())
        answered_by(library, ANSWER(partial(_answered, weakref.ref(self))))

    def answered(self, name: bytes, count: int, given: Any, written: Any) -> int:
        """A call of the library: its status. Errors of this class itself end as 1, with their text."""
        called = name.decode()
        self.calls.append(called)
        arguments = [int(given[index]) for index in range(count)]
        try:
            function: Callable[..., Any] = getattr(self, called if hasattr(type(self), called) else SAME[called])
            status, *values = function(*self._converted(called, arguments))
            if values and values[0] is not None:
                written[0] = round(values[0] * 1000) if called == HIP.elapsed else int(values[0])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            status, self.message = INVALID_VALUE, f"{type(error).__name__}: {error}"
        if int(status):
            ctypes.memmove(self._text, self.message.encode()[:1000] + b"\0", len(self.message.encode()[:1000]) + 1)
        return int(status)

    def _converted(self, name: str, arguments: list[int]) -> list[Any]:
        if name in (HIP.version, HIP.current, "hipGetDeviceCount"):
            return []
        if name == HIP.function:
            return [arguments[0], ctypes.string_at(arguments[1])]
        return list(arguments)

    # what needs no device of the thread

    def hipRuntimeGetVersion(self) -> tuple[int, int]:
        return 0, self.release[0] * 10_000_000 + self.release[1] * 100_000 + 25_424

    def hipGetDeviceCount(self) -> tuple[int, int]:
        return (0, self.count) if self.count else (NO_DEVICE, 0)

    def hipInit(self, flags: int) -> tuple[int]:
        return (0,) if self.count else (NO_DEVICE,)

    def hipGetDevice(self) -> tuple[int, int]:
        return 0, 0

    def hipSetDevice(self, device: int) -> tuple[Any, ...]:
        return self.cuCtxSetCurrent(CONTEXT) if device == 0 else (INVALID_DEVICE,)

    def hipDeviceGetName(self, address: int, length: int, device: int) -> tuple[int]:
        ctypes.memmove(address, b"AMD emulated\0", min(13, length))
        return (0,)

    def hipGetDevicePropertiesR0600(self, address: int, device: int) -> tuple[int]:
        ctypes.memmove(address, self.device_name.encode() + b"\0", len(self.device_name) + 1)
        return (0,)

    def hipDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return (0, LDS) if attribute == SHARED_OF_BLOCK else (INVALID_VALUE, 0)

    # modules and launches

    @call
    def cuModuleUnload(self, module: Any) -> None:
        loaded: Loaded = self.found(module, Loaded)
        loaded.alive = False
        del self._handles[int(module)]

    @call
    def hipModuleLoadData(self, address: int) -> int:
        self.not_capturing()
        image = ctypes.string_at(address, _size_of(address))
        kernel = self._kernels.get(hashlib.sha256(image).hexdigest())
        if kernel is None:
            raise Refused(NO_BINARY, "the hsaco is not known")
        code, program = kernel_of(image), Program(kernel.assembly)
        if code.architecture != self.device_name.partition(":")[0]:
            raise Refused(NO_BINARY, f"the hsaco is for {code.architecture}")
        if [each.size for each in code.arguments] != [each.size for each in program.kernel.parameters.values()]:
            raise Refused(INVALID_IMAGE, f"hsaco and PTX of `{code.name}` have other arguments")
        return self.new(Loaded(code, program, kernel.shared))

    @call
    def cuModuleGetFunction(self, module: Any, name: bytes) -> int:
        loaded: Loaded = self.found(module, Loaded)
        if loaded.code.symbol != f"{name.decode()}.kd":
            raise Refused(NOT_FOUND, f"the module has `{loaded.code.symbol}`, not that of `{name.decode()}`")
        return int(module)  # of the only kernel

    @call
    def hipModuleLaunchKernel(self, function: int, *numbers: int) -> None:
        loaded: Loaded = self.found(function, Loaded)
        grid, block, (shared, stream, parameters, extra) = numbers[:3], numbers[3:6], numbers[6:]
        code = loaded.code
        if block != (code.threads, 1, 1) or block[0] % code.wavefront:
            raise Refused(INVALID_VALUE, f"a block of {block}; `{code.name}` has {code.threads} threads")
        if shared + code.shared > LDS or extra or not parameters:
            raise Refused(INVALID_VALUE, f"{shared} bytes of shared memory, parameters {parameters}, extra {extra}")
        if min(grid) < 1 or grid[0] * block[0] >= 2**32:
            raise Refused(INVALID_VALUE, f"a grid of {grid}")
        arguments = _read(code, parameters)
        launched = Launched(code.name, (grid[0], grid[1], grid[2]), (block[0], 1, 1), shared, tuple(arguments))
        self.queue(stream).put(lambda: self._start(loaded, launched))

    def _start(self, loaded: Loaded, launched: Launched) -> None:
        if not loaded.alive:
            raise Refused(INVALID_VALUE, f"the module of `{launched.name}` was unloaded before the launch ran")
        self.launches.append(launched)
        loaded.program.launch(self.device, launched.grid, list(launched.arguments), shared=loaded.shared, watch=[])


def answered_by(library: ctypes.CDLL, answer: Any) -> None:
    """Has a callback answer all calls of a library, until the process ends."""
    _ANSWERS.append(answer)
    library.set_answer(answer)


def _answered(emulated: weakref.ref[EmulatedHip], name: bytes, count: int, given: Any, written: Any) -> int:
    found = emulated()
    return GONE if found is None else found.answered(name, count, given, written)


def _read(code: CodeKernel, parameters: int) -> Sequence[bytes]:
    """The arguments, through the memory that the runtime copies them to: none overlaps another, all are aligned."""
    table = (ctypes.c_void_p * len(code.arguments)).from_address(parameters)
    memory, used = bytearray(code.argument_bytes), [False] * code.argument_bytes
    for address, each in zip(table, code.arguments, strict=True):
        place = slice(each.offset, each.offset + each.size)
        if each.offset % each.size or any(used[place]) or not address:
            raise Refused(INVALID_VALUE, f"an argument of `{code.name}` is at {each.offset}")
        memory[place], used[place] = ctypes.string_at(address, each.size), [True] * each.size
    return [bytes(memory[each.offset : each.offset + each.size]) for each in code.arguments]


def _size_of(address: int) -> int:
    """Bytes of an ELF file: its table of sections is at its end."""
    header = ctypes.string_at(address, 64)
    (table,) = unpack_from("<Q", header, 40)
    entry, count = unpack_from("<HH", header, 58)
    return int(table) + entry * count
