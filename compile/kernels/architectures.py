"""The GPU architectures that kernels are compiled for, and the limits of their multiprocessors (SM, CU)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The limits of a block and of a multiprocessor; memory is in bytes.

    `shared` is the maximum shared memory of a block, `shared_each` that of a multiprocessor. `warps` and `blocks` are
    the maximum numbers that a multiprocessor can hold. Its `registers` are allocated to warps in units of
    `register_unit`, shared memory to blocks in units of `shared_unit`.

    NVIDIA: "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, and the CUDA occupancy
    calculator. AMD: the CDNA 2 and CDNA 3 instruction set manuals; the registers of a wavefront are vector registers
    of 64 lanes, of both kinds together.
    """

    name: str
    shared: int
    shared_each: int
    warps: int
    blocks: int
    registers: int = 65536
    register_unit: int = 256
    shared_unit: int = 128
    reserved: int = KIB  # shared memory of a block that the driver reserves


_NVIDIA = (
    Architecture(name="sm_80", shared=163 * KIB, shared_each=164 * KIB, warps=64, blocks=32),
    Architecture(name="sm_86", shared=99 * KIB, shared_each=100 * KIB, warps=48, blocks=16),
    Architecture(name="sm_89", shared=99 * KIB, shared_each=100 * KIB, warps=48, blocks=24),
    Architecture(name="sm_90", shared=227 * KIB, shared_each=228 * KIB, warps=64, blocks=32),
    Architecture(name="sm_100", shared=227 * KIB, shared_each=228 * KIB, warps=64, blocks=32),
    Architecture(name="sm_120", shared=99 * KIB, shared_each=100 * KIB, warps=48, blocks=24),
)
_AMD = tuple(
    Architecture(
        name=name,
        shared=64 * KIB,
        shared_each=64 * KIB,
        warps=32,
        blocks=16,
        registers=4 * 512 * 64,
        register_unit=8 * 64,
        shared_unit=512,
        reserved=0,
    )
    for name in ("gfx90a", "gfx942")
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({each.name: each for each in (*_NVIDIA, *_AMD)})


def is_nvidia(capability: str) -> bool:
    """Whether an architecture is NVIDIA's. Its kernels then have PTX."""
    return capability.startswith("sm_")


def has_fp8(capability: str) -> bool:
    """Whether an architecture has instructions that convert to float8 e4m3 and multiply it: sm_89 and later.

    PTX ISA, "cvt" and "mma", target notes of `.e4m3`. AMD's architectures in this table have another e4m3 (fnuz), or
    none.
    """
    return is_nvidia(capability) and int(capability.removeprefix("sm_")) >= 89
