"""The resources of a compiled kernel: registers, memory for spilled registers, shared memory, occupancy."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.compile.kernels.code_object import kernel_of
from bringup.compile.kernels.compiled import Compiled

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of a kernel on one architecture.

    `registers`: registers of a thread. `stack`: local memory of a thread in bytes, which contains spilled registers;
    for AMD, the number of spilled registers. `shared`: dynamic and static shared memory of a block in bytes. `warps`:
    how many warps fit on a multiprocessor, of `max_warps`.
    """

    registers: int
    stack: int
    shared: int
    warps: int
    max_warps: int

    @property
    def occupancy(self) -> float:
        """The fraction of a multiprocessor's maximum number of warps that fits. 0 if not even one block fits."""
        return self.warps / self.max_warps


def resources(compiled: Compiled) -> Resources:
    """The resources, read from the binary.

    Raises OSError if Triton's cuobjdump cannot run, ValueError if it has no result or an hsaco is invalid.
    """
    registers, stack, static = (_of_cubin if is_nvidia(compiled.capability) else _of_hsaco)(compiled)
    shared, limits = compiled.shared + static, ARCHITECTURES[compiled.capability]
    unit = limits.register_unit
    each = -(-registers * compiled.warp_size // unit) * unit
    # A multiprocessor has four partitions, each with its own registers and warps.
    by_registers = limits.registers // 4 // max(each, unit) * 4 // compiled.num_warps
    taken = -(-(shared + limits.reserved) // limits.shared_unit) * limits.shared_unit
    by_shared = limits.shared_each // taken if taken else limits.blocks
    blocks = min(limits.blocks, limits.warps // compiled.num_warps, by_registers, by_shared)
    fits = shared <= limits.shared
    return Resources(
        registers=registers,
        stack=stack,
        shared=shared,
        warps=blocks * compiled.num_warps if fits else 0,
        max_warps=limits.warps,
    )


def _of_cubin(compiled: Compiled) -> tuple[int, int, int]:
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("triton")
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.binary)
        file.flush()
        run = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False)
    found = _USAGE.search(run.stdout)
    if found is None:
        raise ValueError(f"cuobjdump reports nothing of `{compiled.name}`: {run.stderr.strip()}")
    registers, stack, static, local = map(int, found.groups())
    return registers, stack + local, static


def _of_hsaco(compiled: Compiled) -> tuple[int, int, int]:
    found = kernel_of(compiled.binary)
    return found.registers, found.spilled, found.shared
