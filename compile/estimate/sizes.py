"""Sizes of the inputs and results of a compile, before a tensor is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.arguments import integer
from bringup.compile.check.checker import check_job as check
from bringup.compile.estimate.memory import CompileMemory, compile_memory, estimate_of
from bringup.compile.job import Job
from bringup.compile.packed_job import weights_of
from bringup.compile.program.export_options import context_of, layout_of
from bringup.compile.targets.selection import select
from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.module import Const
from bringup.graphs.core.step import BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes, except `parameters`, `context`, `max_batch_size` and `cache_blocks`, which are counts.

    `cache`: all states, with a block and a row of padding; `rings` is the part of it for sliding windows.
    `quantised_form` describes the form of quantised weights, "" if the checkpoint has none.
    `cache_blocks`: of the paged states, without padding; None for enough for all sequences at their full length.
    """

    parameters: int
    elements: int
    dtype: str
    weights: int
    tables: int
    context: int
    max_batch_size: int
    cache_blocks: int | None
    cache_dtype: str
    cache_per_token: int
    cache: int
    rings: int
    recurrent: int
    packed: int
    quantised_form: str
    compiling: CompileMemory

    @property
    def _tokens(self) -> str:
        each = f"{self.context:,} tokens"
        whole = each if self.max_batch_size == 1 else f"{self.max_batch_size} sequences of {each}"
        whole = f"{self.cache_blocks} blocks of {BLOCK} tokens, shared by {whole}" if self.cache_blocks else whole
        parts = {"sliding windows": self.rings, "recurrent states": self.recurrent}
        listed = " and ".join(f"{_mb(nbytes)} of it for {what}" for what, nbytes in parts.items() if nbytes)
        return f"{whole} and padding" + (f", {listed}" if listed else "")

    @property
    def running(self) -> int:
        """Weights, packed copies of them, tables and cache: bytes of a run, without Python and its libraries."""
        return self.weights + self.tables + self.packed + self.cache

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For printing."""
        run = _mb(self.running)
        copies = f" + packed copy {_mb(self.packed)}" if self.packed else ""
        return [
            ("parameters", f"{self.parameters:,} of {self.elements / 1e6:,.1f} M values, {self.dtype}; tied ones once"),
            ("weights", f"{_mb(self.weights)} in the bundle, {_mb(self.tables)} of computed tables in addition"),
            *([("quantised", self.quantised_form)] if self.quantised_form else []),
            (
                "cache",
                f"{self.cache_per_token:,} bytes a token in {self.cache_dtype}, {_mb(self.cache)} for {self._tokens}",
            ),
            (
                "compile memory",
                f"at most {_mb(self.compiling.process)}: tools {_mb(self.compiling.tools)} + weights at once "
                f"{_mb(self.compiling.weights)}; {_mb(self.compiling.subprocess_peak)} in each subprocess",
            ),
            (
                "run memory",
                f"{run}: weights {_mb(self.weights)}{copies} + cache {_mb(self.cache)}, plus Python itself",
            ),
        ]


def dry_run(
    job: Job,
    target: str,
    max_seq_len: int | None,
    max_batch_size: int = 1,
    target_options: Mapping[str, str | int] | None = None,
    *,
    cache_blocks: int | None = None,
    weights_form: str = "auto",
) -> Sizes:
    """The sizes of a compile. Raises the errors that `build` raises before it exports.

    The packages that the target requires need not be installed.
    """
    check(job).raise_if_errors()
    context, selection = context_of(job, max_seq_len), select(target, target_options)
    selection.check_cache_dtype(job.graph)
    selection.check_activations(job.graph)
    max_batch_size = integer("max_batch_size", max_batch_size, minimum=1)
    held = layout_of(job.graph, context, max_batch_size=max_batch_size, cache_blocks=cache_blocks).sizes
    aliases = job.plan.aliases()
    logical = [entry.declared for name, entry in job.plan.entries.items() if name not in aliases]
    job, text = weights_of(job, weights_form, selection)
    aliases = job.plan.aliases()
    sizes = [entry.declared.nbytes for name, entry in job.plan.entries.items() if name not in aliases]
    tables = (math.prod(axis.size or context for axis in leaf.axes) * 4 for _, leaf in job.graph.leaves(Const))
    return Sizes(
        parameters=len(logical),
        elements=sum(math.prod(shape_of(declared.axes)) for declared in logical),
        dtype=job.graph.dtype,
        weights=sum(sizes),
        tables=sum(tables),
        context=context,
        max_batch_size=max_batch_size,
        cache_blocks=held.cache_blocks,
        cache_dtype=job.graph.cache_dtype,
        cache_per_token=job.graph.state_bytes(held),
        cache=job.graph.cache_bytes(held),
        rings=job.graph.ring_bytes(held),
        recurrent=job.graph.recurrent_bytes(held),
        packed=estimate_of(job, selection).packed,
        quantised_form=text,
        compiling=compile_memory(job, selection),
    )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
