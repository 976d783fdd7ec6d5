"""The whole way, one stage after the other. Read this file first.

checkpoint headers ─┐
graph ── signature ─┴─ plan ── check ── program ── lowered ── bundle
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.arguments import path, whole, whole_numbers
from bringup.compile import bundle as bundles
from bringup.compile.cache.recipe import Recipe
from bringup.compile.cache.store import Store, default_store
from bringup.compile.cache.weights import place_weights
from bringup.compile.check import check_job as check
from bringup.compile.contents import manifest_of, tokenizer_of, write_tokenizer
from bringup.compile.job import Job, as_job, job_of, with_weights
from bringup.compile.lowering import form_of, lowered
from bringup.compile.memory import check_limit
from bringup.compile.phases import dump, emit_phase
from bringup.compile.stages import Layout
from bringup.compile.target import resolve
from bringup.compile.ties import tie_warnings
from bringup.compile.traced import coded
from bringup.diagnostics import fail
from bringup.graphs.graph import Graph
from bringup.progress import Progress, Silent

if TYPE_CHECKING:
    import numpy as np

DEFAULT_CONTEXT = 2048
# Prefill lengths, put together by steps.chunks_of. A length costs a compile some 1.5 s, and past 64 tokens gains
# nothing on a CPU: GPT-2 small takes 1.27 ms a token in runs of 32, 1.0 of 64, 0.95 of 256, 1.05 of 512.
BUCKETS = (32, 256)


def build(
    job: Job | Graph,
    *,
    out: str | Path,
    weights: Mapping[str, np.ndarray] | None = None,
    target: str = "cpu",
    max_seq_len: int | None = None,
    buckets: Sequence[int] = BUCKETS,
    all_logits: bool = False,
    aux_hidden: Sequence[int] = (),
    force: bool = False,
    emit: str = "bundle",
    dump_dir: str | Path | None = None,
    cache: Store | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compiles to a bundle at `out`, or, with `emit`, to the file of an earlier phase.

    Takes a job, or a graph and the dict of its weights by exact name: missing, extra and mis-shaped ones raise before
    anything is exported, all at once. With a job, such a dict takes the place of its checkpoint's tensors. `buckets`
    are the prefill lengths that are compiled. `all_logits` keeps the logits of every prompt token (for scoring), not
    only of the last. `aux_hidden` names hidden states to give beside them, as drafts such as EAGLE-3 need
    (`Session.hidden`): i is what layer i takes, the number of layers what the head takes; transformers'
    `hidden_states[i]`. `dump_dir` receives each phase as text. What `cache`, by default the user's, has of it is not
    made again; a bundle at `out` that would come out the same stays as it is. Raises BringupError; nothing half-written
    stays behind.
    """
    if isinstance(job, Graph):
        job = job_of(job, {} if weights is None else weights)
    elif weights is not None:
        job = with_weights(as_job(job), weights)
    lowering = resolve(target)
    out, progress, store = Path(path("out", out)), progress or Silent(), cache or default_store()
    dumped = None if dump_dir is None else Path(path("dump_dir", dump_dir))
    context = context_of(as_job(job), max_seq_len)
    layout = layout_of(job.graph, context, buckets, all_logits=all_logits, aux_hidden=aux_hidden)
    with progress.stage("Checking") as stage:
        report = check(job)
        report.raise_if_errors()
        check_limit(job, lowering)
        for finding in [*report.warnings, *tie_warnings(job)]:
            progress.warn(finding)
        stage.done(f"{len(job.plan.entries)} parameters against {len(job.plan.headers)} tensors")
    if emit != "bundle":
        return emit_phase(emit, job.graph, layout, out, store, dumped, progress)
    recipe = Recipe.of(job, layout, lowering)
    if not force and bundles.is_made_from(out, recipe.key):
        with progress.stage("Finding") as stage:
            stage.done(f"{out} as it would be made: nothing has changed")
        return out
    bundles.refuse(out, force=force)
    tokenizer = tokenizer_of(job)
    if tokenizer and tokenizer.warning:
        progress.warn(tokenizer.warning)
    with progress.stage("Exporting") as stage:
        if dumped:
            dump(job.graph, layout, dumped)
        program = coded(job.graph, layout, form_of(lowering), store)
        stage.done(f"{len(program.interface.entries)} entry points, {program.told}")
    with (
        bundles.writing(out, force=force, progress=progress) as folder,
        lowered(program, lowering, folder, store, dumped) as finish,
    ):
        with progress.stage("Writing") as stage:
            place = folder / bundles.WEIGHTS
            placed = place_weights(job, layout.context, recipe.weights, place, store, stage, verified=force)
            for finding in placed.warnings:
                progress.warn(finding)
            stage.done(placed.told)
        write_tokenizer(tokenizer, folder)
        (folder / "signature.json").write_text(job.plan.signature.to_json(), "utf-8")
        with progress.stage("Lowering") as stage:
            stage.done(finish())
        as_told = Recipe.of(job, layout, lowering) == recipe  # not while a file of the checkpoint or of a model changes
        made_from = recipe.key if as_told else ""
        bundles.seal(folder, manifest_of(job, target, lowering, layout, program.interface, made_from))
    if as_told:
        placed.keep(store, out / bundles.WEIGHTS)
    store.trim()
    return out


def layout_of(
    graph: Graph,
    context: int,
    buckets: Sequence[int] = BUCKETS,
    *,
    all_logits: bool = False,
    aux_hidden: Sequence[int] = (),
) -> Layout:
    """What a program for `context` tokens consists of: prefill of each bucket's length, and decode.

    Of the buckets that hold the whole context, only the smallest is kept. Raises BU007 for lengths under 2, or none,
    BU028 for hidden states that it does not have.
    """
    buckets, aux_hidden = whole_numbers("buckets", buckets), whole_numbers("aux_hidden", aux_hidden)
    if not buckets or min(buckets) < 2:
        raise fail("BU007", f"prefill lengths are {list(buckets)}; give at least one, each at least 2")
    whole = min((size for size in buckets if size >= context), default=max(buckets))
    useful = [size for size in sorted(buckets) if size <= whole]
    layers = len(graph.layers)
    if wrong := [index for index in aux_hidden if not 0 <= index <= layers]:
        raise fail("BU028", f"there is no hidden state {wrong[0]}: the model's {layers} layers have 0 to {layers}")
    return Layout.of(graph, buckets=useful, context=context, all_logits=all_logits, aux_hidden=sorted(set(aux_hidden)))


def context_of(job: Job, asked: int | None) -> int:
    """How many tokens a program is made for. Raises BU007 when the model has fewer positions than asked."""
    largest = job.graph.config.max_positions
    asked = None if asked is None else whole("max_seq_len", asked)
    if asked is not None and not 1 <= asked <= largest:
        raise fail("BU007", f"--max-seq-len {asked} is not between 1 and the model's {largest}")
    return asked or min(largest, DEFAULT_CONTEXT)
