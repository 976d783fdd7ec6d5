"""Compiled: Triton's output for a kernel, as plain data with a JSON codec."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bringup.compile.kernels.call import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A kernel for one architecture.

    `binary` is a cubin or an hsaco, `assembly` its PTX or AMD's assembly, `ttgir` Triton's own IR before lowering. A
    program of the grid has `num_warps` · `warp_size` threads and `shared` bytes of dynamic shared memory. `types` are
    the types of the parameters in Triton's notation: the kernel's own, then two pointers that Triton adds to every
    kernel, to global scratch memory and to that of its profiler, which are null if its size is 0.
    `global_scratch_size` is in bytes for each program of the grid, aligned to `global_scratch_align` bytes.
    """

    name: str
    capability: str
    binary: bytes
    assembly: str
    ttgir: str
    types: tuple[str, ...]
    num_warps: int
    warp_size: int
    shared: int
    global_scratch_size: int = 0
    global_scratch_align: int = 1

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return self.num_warps * self.warp_size


def compiled_to_json(compiled: Compiled) -> dict[str, Any]:
    """All fields, with the binary in base64."""
    return asdict(compiled) | {"binary": b64encode(compiled.binary).decode(), "types": list(compiled.types)}


def compiled_from_json(fields: Mapping[str, Any]) -> Compiled:
    """The inverse of `compiled_to_json`. Raises ValueError, KeyError or TypeError for anything else."""
    values = dict(fields)
    values["binary"] = b64decode(fields["binary"], validate=True)
    values["types"] = tuple(fields["types"])
    return Compiled(**values)


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    """All fields, with tuples as lists."""
    listed = {"types": list(kernel.types), "aligned": list(kernel.aligned)}
    return asdict(kernel) | listed | {"constants": [list(pair) for pair in kernel.constants]}


def kernel_from_json(fields: Mapping[str, Any]) -> Kernel:
    """The inverse of `kernel_to_json`. Raises ValueError, KeyError or TypeError for anything else."""
    values = dict(fields)
    values["constants"] = tuple((str(name), value) for name, value in fields["constants"])
    values["types"], values["aligned"] = tuple(fields["types"]), tuple(fields["aligned"])
    return Kernel(**values)
