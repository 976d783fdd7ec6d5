"""What a compile will take and give, in numbers, before a tensor is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bringup.compile.check.checker import check_job as check
from bringup.compile.estimate.memory import CompileMemory, compile_memory
from bringup.compile.job import Job
from bringup.compile.program.export_options import context_of
from bringup.compile.targets.target import resolve
from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Const


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes, except `parameters` and `context`, which count."""

    parameters: int
    elements: int
    dtype: str
    weights: int
    tables: int
    context: int
    cache_per_token: int
    packed: int
    compiling: CompileMemory

    @property
    def cache(self) -> int:
        return self.cache_per_token * self.context

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For printing."""
        run = self.weights + self.tables + self.packed + self.cache
        copies = f" + packed copy {_mb(self.packed)}" if self.packed else ""
        return [
            ("parameters", f"{self.parameters:,} of {self.elements / 1e6:,.1f} M values, {self.dtype}; tied ones once"),
            ("weights", f"{_mb(self.weights)} in the bundle, {_mb(self.tables)} of computed tables in addition"),
            ("cache", f"{self.cache_per_token:,} bytes a token, {_mb(self.cache)} for {self.context:,} tokens"),
            (
                "compile memory",
                f"at most {_mb(self.compiling.process)}: tools {_mb(self.compiling.tools)} + weights at once "
                f"{_mb(self.compiling.weights)}; {_mb(self.compiling.subprocess_peak)} in each subprocess",
            ),
            (
                "run memory",
                f"{_mb(run)}: weights {_mb(self.weights)}{copies} + cache {_mb(self.cache)}, plus Python itself",
            ),
        ]


def dry_run(job: Job, target: str, max_seq_len: int | None) -> Sizes:
    """The sizes of a compile. Raises what `build` would raise before exporting."""
    check(job).raise_if_errors()
    context, lowering = context_of(job, max_seq_len), resolve(target)
    aliases = job.plan.aliases()
    stored = [entry.declared for name, entry in job.plan.entries.items() if name not in aliases]
    sizes = [declared.nbytes for declared in stored]
    matrices = sum(d.nbytes for d in stored if len(d.axes) == 2)
    tables = (math.prod(axis.size or context for axis in leaf.axes) * 4 for _, leaf in job.graph.leaves(Const))
    return Sizes(
        parameters=len(stored),
        elements=sum(math.prod(shape_of(declared.axes)) for declared in stored),
        dtype=job.graph.dtype,
        weights=sum(sizes),
        tables=sum(tables),
        context=context,
        cache_per_token=job.graph.state_bytes(),
        packed=matrices if lowering == "iree-cpu" else 0,  # IREE tiles each matrix once, when it loads
        compiling=compile_memory(job, lowering),
    )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
