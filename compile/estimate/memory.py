"""How much memory a compile takes at most: a bound that `--dry-run` states and tests hold it to."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.materialise import untouched
from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.diagnostics import fail
from bringup.spec import DTYPES

# Python, torch and the compilers, in bytes of resident memory (VmHWM) of a whole compile whose weights take none, GPT-2
# with two layers of 16 channels: bringup's process, and the largest of the processes beside it, which are forks that
# trace and iree-compile. Measured on x86-64 Linux, torch 2.13, IREE 3.13: 350 and 294 MB for torch, 484 and 371 MB for
# iree-cpu. A fifth is added for other versions and machines.
_TOOLS = {"torch": (420_000_000, 360_000_000), "iree-cpu": (580_000_000, 450_000_000)}
# Address space (VmPeak) of the same compiles: 890 and 1,380 MB. With less, torch ends the process instead of raising.
_SPACE = {"torch": 900_000_000, "iree-cpu": 1_400_000_000}
_KIND = 10_000_000  # for each kind of layer: what its traced functions and their MLIR take


@dataclass(frozen=True, slots=True)
class CompileMemory:
    """Bytes: of bringup's process without weights, of what it holds of them at once, of any process beside it."""

    tools: int
    weights: int
    subprocess_peak: int

    @property
    def process(self) -> int:
        return self.tools + self.weights


def compile_memory(job: Job, lowering: str) -> CompileMemory:
    """The bound for a target. What a user's own dict of weights takes is not in it.

    Parameters are made and written one after the other; while one is made, the one before is still hashed.
    """
    tools, subprocess = _TOOLS.get(lowering, _TOOLS["iree-cpu"])
    kinds = _KIND * len(set(job.graph.kinds()))
    entries = job.plan.entries.values()
    making = max((_making(entry, dummy=job.checkpoint.is_dummy) for entry in entries), default=0)
    before = max((entry.declared.nbytes for entry in entries), default=0)
    return CompileMemory(tools + kinds, making + before, subprocess + kinds)


def check_limit(job: Job, lowering: str) -> None:
    """Raises BU903 where `ulimit -v` leaves less address space than a compile takes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    mapped = sum(info.nbytes for info in job.checkpoint.headers.values() if info.file)
    need = _SPACE.get(lowering, _SPACE["iree-cpu"]) + compile_memory(job, lowering).weights + mapped
    if limit < need:
        raise fail(
            "BU903",
            f"compiling takes {need:,} bytes of address space, and this process may have {limit:,}",
            help="raise the limit: ulimit -v unlimited",
        )


def _making(entry: Entry, *, dummy: bool) -> int:
    """What one parameter takes while it is made: its own array, and its sources, mapped, copied or drawn."""
    total = 0 if untouched(entry) else entry.declared.nbytes
    for source in entry.sources:
        if isinstance(source, Computed):
            total += 2 * 4 * math.prod(source.shape)  # in float32, and once more on the way
        else:
            total += DTYPES[source.dtype].nbytes(source.shape)
            total += 2 * 4 * math.prod(source.shape) if dummy else 0  # drawn in float32, and its sum
    return total
