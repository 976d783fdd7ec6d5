"""Runs kernel calls on the PTX emulator, on buffers that are numpy arrays."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from bringup.compile import ptx
from bringup.compile.kernels.call import SCRATCH, KernelCall, Operand, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select.tensors import COUNTERS

FORMATS = {"i32": "<i", "u32": "<I", "i64": "<q", "fp32": "<f"}


class Emulated:
    """Device memory with some buffers, and `scratch` whose counters are zero and whose rest is NaN."""

    def __init__(self, buffers: Mapping[str, np.ndarray], scratch: int = 0, nbytes: int = 1 << 26) -> None:
        self.device = ptx.Device(nbytes)
        self.shapes = {name: (array.dtype, array.shape) for name, array in buffers.items()}
        self.places = {name: self.device.put(array, name=name) for name, array in buffers.items()}
        self.scratch = max(scratch, COUNTERS)
        memory = np.full(self.scratch, 0xFF, np.uint8)
        memory[:COUNTERS] = 0
        self.places[SCRATCH] = self.device.put(memory, name=SCRATCH)

    def run(
        self,
        call: KernelCall,
        compiled: Compiled,
        *,
        copies: str = "latest",
        seed: int | None = None,
        is_counting: bool = False,
    ) -> ptx.Run:
        """One launch with all checks on; no race, no wrong order of blocks, and counters that are zero again.

        `is_counting`: a later launch sets them to zero.
        """
        kinds = (*call.kernel.types, "*i8", "*i8")
        assert call.scratch <= self.scratch
        own = compiled.global_scratch_size * math.prod(call.grid)
        memory = self.device.alloc(own, "global scratch") if own else 0
        arguments = [self.packed(kind, value) for kind, value in zip(kinds, (*call.arguments, memory, 0), strict=True)]
        watch = [ptx.Bytes(), ptx.Races(), ptx.Order()]
        program = ptx.program_of(compiled.assembly)
        run = program.launch(
            self.device, call.grid, arguments, shared=compiled.shared, watch=watch, copies=copies, seed=seed
        )
        if own:
            self.device.free(memory)
        found = [str(race) for race in run.races if not race.harmless] + [str(each) for each in run.order]
        assert not found, found
        assert self.device.read(self.places[SCRATCH], np.uint8, (COUNTERS,)).any() == is_counting
        return run

    def packed(self, kind: str, value: Operand) -> bytes:
        if isinstance(value, Pointer):
            return struct.pack("<Q", self.places[value.buffer] + value.offset)
        return struct.pack("<Q" if kind.startswith("*") else FORMATS[kind], value)

    def read(self, name: str) -> np.ndarray:
        dtype, shape = self.shapes[name]
        return self.device.read(self.places[name], dtype, shape)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Distance relative to the size, both as float64; infinity for what is not finite."""
    wide = np.asarray(found, np.float64)
    if not np.isfinite(wide).all():
        return float("inf")
    return float(np.linalg.norm(wide - expected) / max(np.linalg.norm(expected), 1e-30))


def steps_of(seeds: Sequence[int]) -> list[tuple[str, int | None]]:
    """Late and early asynchronous copies, blocks in order and shuffled."""
    return [("latest", None), *(("earliest", seed) for seed in seeds)]
