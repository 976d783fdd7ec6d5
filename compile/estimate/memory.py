"""An upper bound on the memory of a compile, which `--dry-run` prints and tests verify."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.materialise import untouched
from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.compile.targets.selection import Selection
from bringup.compile.targets.target import Estimate
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo

_KIND = 10_000_000  # bytes for each kind of layer: its traced functions and their MLIR


@dataclass(frozen=True, slots=True)
class CompileMemory:
    """Bytes: of bringup's process without weights, of the weights that it holds at once, of any child process."""

    tools: int
    weights: int
    subprocess_peak: int

    @property
    def process(self) -> int:
        return self.tools + self.weights


def estimate_of(job: Job, selection: Selection) -> Estimate:
    """The target's estimate for a job's weights, tied ones once."""
    aliases = job.plan.aliases()
    stored = (entry.declared.storage for name, entry in job.plan.entries.items() if name not in aliases)
    return selection.estimate([TensorInfo("", dtype, shape) for shape, dtype in stored])


def compile_memory(job: Job, selection: Selection) -> CompileMemory:
    """The bound for a target, without the memory of a user's own dict of weights.

    Parameters are computed and written one after the other; while one is computed, the previous one is still hashed.
    """
    estimate = estimate_of(job, selection)
    kinds = _KIND * len(set(job.graph.layer_classes()))
    entries = job.plan.entries.values()
    making = max((_making(entry, dummy=job.checkpoint.is_dummy) for entry in entries), default=0)
    before = max((entry.declared.nbytes for entry in entries), default=0)
    return CompileMemory(estimate.tools + kinds, making + before, estimate.children + kinds)


def check_limit(job: Job, selection: Selection) -> None:
    """Raises BU903 if `ulimit -v` permits less address space than a compile needs.

    With less, torch ends the process instead of raising.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    mapped = sum(info.nbytes for info in job.checkpoint.headers.values() if info.file)
    need = estimate_of(job, selection).space + compile_memory(job, selection).weights + mapped
    if limit < need:
        raise fail(
            "BU903",
            f"compiling needs {need:,} bytes of address space, and this process may have {limit:,}",
            help="raise the limit: ulimit -v unlimited",
        )


def _making(entry: Entry, *, dummy: bool) -> int:
    """The memory to compute one parameter: its own array, and its sources, mapped, copied or drawn."""
    total = 0 if untouched(entry) else entry.declared.nbytes
    for source in entry.sources:
        if isinstance(source, Computed):
            total += 2 * 4 * math.prod(source.shape)  # in float32, with an intermediate copy
        else:
            total += DTYPES[source.dtype].nbytes(source.shape)
            total += 2 * 4 * math.prod(source.shape) if dummy else 0  # drawn in float32, and its sum
    return total
