"""The whole way, one stage after the other. Read this file first.

checkpoint headers ─┐
graph ── signature ─┴─ plan ── check ── program ── lowered ── bundle
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile import bundle as bundles
from bringup.compile.check import check as check_plan
from bringup.compile.contents import manifest_of, write_tokenizer, write_weights
from bringup.compile.job import Job, job_of
from bringup.compile.lowering import emit_phase, lower
from bringup.compile.target import resolve
from bringup.compile.ties import tie_warnings
from bringup.diagnostics import Report, fail
from bringup.graphs.graph import Graph
from bringup.progress import Progress, Silent

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.program import Program

DEFAULT_CONTEXT = 2048
BUCKETS = (64, 128, 256, 512)  # prefill lengths; a prompt is padded to the next, a longer one runs in chunks


def check(job: Job) -> Report:
    """Proves, from headers alone, that the job's checkpoint fits its graph: the report says what does not."""
    start = time.perf_counter()
    report = check_plan(job.plan, job.graph.config.family)
    report.findings = [*job.findings, *report.findings]
    report.seconds = time.perf_counter() - start
    return report


def build(
    job: Job | Graph,
    *,
    out: str | Path,
    weights: Mapping[str, np.ndarray] | None = None,
    target: str = "cpu",
    max_seq_len: int | None = None,
    buckets: Sequence[int] = BUCKETS,
    all_logits: bool = False,
    force: bool = False,
    emit: str = "bundle",
    dump_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compiles to a bundle at `out`, or, with `emit`, to the file of an earlier phase.

    Takes a job, or a graph and the dict of its weights by exact name: missing, extra and mis-shaped ones raise before
    anything is exported, all at once. `buckets` are the prefill lengths that are compiled. `all_logits` keeps the
    logits of every prompt token (for scoring), not only of the last. `dump_dir` receives each phase as text. Raises
    BringupError; nothing half-written stays behind.
    """
    if isinstance(job, Graph):
        job = job_of(job, weights or {})
    lowering, out, progress = resolve(target), Path(out), progress or Silent()
    context = context_of(job, max_seq_len)
    if emit == "bundle":
        bundles.refuse(out, force=force)
    with progress.stage("Checking") as stage:
        report = check(job)
        report.raise_if_errors()
        for finding in tie_warnings(job):
            progress.warn(finding)
        stage.done(f"{len(job.plan.entries)} parameters against {len(job.plan.headers)} tensors")
    with progress.stage("Exporting") as stage:
        program = export(job.graph, context, buckets, all_logits=all_logits)
        stage.done(f"{len(program.interface.entries)} entry points, {len(program.interface.functions)} functions")
    if emit != "bundle":
        return emit_phase(program, emit, out, dump_dir, progress)
    with bundles.writing(out) as folder:
        lower(program, lowering, folder, dump_dir, progress)
        with progress.stage("Writing") as stage:
            nbytes = write_weights(job, context, folder / bundles.WEIGHTS, stage.advance)
            stage.done(f"weights, {nbytes / 1e6:,.1f} MB")
        write_tokenizer(job, folder)
        (folder / "signature.json").write_text(job.plan.signature.to_json(), "utf-8")
        bundles.seal(folder, manifest_of(job, target, lowering, context, program))
    return out


def export(graph: Graph, context: int, buckets: Sequence[int] = BUCKETS, *, all_logits: bool = False) -> Program:
    """The graph's program for a context of `context` tokens: prefill of each bucket's length, and decode.

    Of the buckets that hold the whole context, only the smallest is kept.
    """
    from bringup.compile.export import ExportOptions, export_program
    from bringup.compile.steps import slots_for
    from bringup.graphs.module import State
    from bringup.graphs.torch_module import to_torch

    module = to_torch(graph, graph.dtype, positions=context, slots=slots_for(context))
    states = [name for name, _ in graph.leaves(State)]
    if not buckets or min(buckets) < 2:
        raise fail("BU007", f"prefill lengths are {list(buckets)}; give at least one, each at least 2")
    whole = min((size for size in buckets if size >= context), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= whole]
    options = ExportOptions(buckets=useful, max_seq=context, all_logits=all_logits)
    return export_program(module, kinds=graph.kinds(), states=states, options=options)


def context_of(job: Job, asked: int | None) -> int:
    """How many tokens a program is made for. Raises BU007 when the model has fewer positions than asked."""
    largest = job.graph.config.max_positions
    if asked is not None and not 1 <= asked <= largest:
        raise fail("BU007", f"--max-seq-len {asked} is not between 1 and the model's {largest}")
    return asked or min(largest, DEFAULT_CONTEXT)
