"""From a checkpoint to a bundle, one stage after the other. Read this file first.

checkpoint headers ─┐
graph ── signature ─┴─ plan ── check ── program ── lowered ── bundle
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.arguments import choice, path
from bringup.compile.bundle import folder as bundles
from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.bundle.contents import manifest_of, tokenizer_of, write_tokenizer
from bringup.compile.bundle.place_weights import place_weights
from bringup.compile.cache.store import Store, default_store
from bringup.compile.check.checker import check_job as check
from bringup.compile.check.quantisation.parts import part_warnings
from bringup.compile.check.ties import tie_warnings
from bringup.compile.emit import BUNDLE, check_outputs, check_phase, dumping, emit_phase
from bringup.compile.estimate.memory import check_limit
from bringup.compile.job import Job, as_job, job_of, with_weights
from bringup.compile.packed_job import WEIGHTS_FORMS, form_of, weights_of
from bringup.compile.program.export_options import BUCKETS, context_of, layout_of
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.targets.selection import select
from bringup.graphs.core.graph import Graph
from bringup.progress import Progress, Silent

if TYPE_CHECKING:
    import numpy as np


def build(
    job: Job | Graph,
    *,
    out: str | Path,
    weights: Mapping[str, np.ndarray] | None = None,
    target: str = "cpu",
    target_options: Mapping[str, str | int] | None = None,
    weights_form: str = "auto",
    max_seq_len: int | None = None,
    buckets: Sequence[int] = BUCKETS,
    all_logits: bool = False,
    aux_hidden: Sequence[int] = (),
    max_batch_size: int = 1,
    cache_blocks: int | None = None,
    max_input_len: int | None = None,
    draft_tokens: int = 0,
    force: bool = False,
    emit: str = BUNDLE,
    dump_dir: str | Path | None = None,
    cache: Store | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compiles to a bundle at `out`, or, with `emit`, to the file of an earlier phase.

    The input is a job, or a graph and a dict of its weights by exact name. Missing, additional and mis-shaped weights
    are reported together, before anything is exported. With a job, such a dict replaces the tensors of its checkpoint.
    `weights_form` is the form of quantised weights: "packed" as they are stored, "float" dequantised, "auto" packed if
    the target supports it. `buckets` are the prefill lengths to compile. `all_logits` returns the logits of every
    prompt token (for scoring), not only of the last. `aux_hidden` lists hidden states to output as well, for drafts
    such as EAGLE-3 (`Session.hidden`): i is the input of layer i, the number of layers the input of the head
    (transformers' `hidden_states[i]`). `max_batch_size` is the largest number of sequences in a step. `cache_blocks` is
    the number of blocks of 64 tokens (`graphs.core.step.BLOCK`) that they share. None is enough for all sequences at
    full length; with fewer blocks a batch may have to recompute a sequence (`Batch.preemptions`). `max_input_len` is
    the longest prompt of sessions and batches, None the context. `draft_tokens` is the number of tokens of a draft that
    a step checks (`Speculative`): it adds a prefill length of one more token, with recurrent layers of twice as many
    and one, and sets `all_logits`. `dump_dir` receives each phase as text. `target_options` are values for options of
    the target (`bringup targets` lists them); True and False mean yes and no. Results in `cache`, by default the
    user's, are reused, and an up-to-date bundle at `out` is not changed. Raises BringupError; writes are atomic.
    """
    if isinstance(job, Graph):
        job = job_of(job, {} if weights is None else weights)
    elif weights is not None:
        job = with_weights(as_job(job), weights)
    selection = select(target, target_options)
    weights_form = choice("weights_form", weights_form, WEIGHTS_FORMS)
    check_phase(emit, selection)
    selection.check_cache_dtype(job.graph)
    selection.check_activations(job.graph)
    selection.check_loras(job.graph)
    logical = as_job(job)
    out, progress, store = Path(path("out", out)), progress or Silent(), cache or default_store()
    dump_to = None if dump_dir is None else Path(path("dump_dir", dump_dir))
    check_outputs(out, dump_to, is_bundle=emit == BUNDLE)
    context = context_of(logical, max_seq_len)
    layout_for = partial(
        layout_of, context=context, buckets=buckets, all_logits=all_logits, aux_hidden=aux_hidden,
        max_batch_size=max_batch_size, cache_blocks=cache_blocks, max_input_len=max_input_len,
        draft_tokens=draft_tokens,
    )  # fmt: skip
    layout = layout_for(logical.graph)
    with progress.stage("Checking") as stage:
        report = check(logical)
        report.raise_if_errors()
        job, held = weights_of(logical, weights_form, selection)
        layout = layout_for(job.graph)
        check_limit(job, selection)
        for finding in [*report.warnings, *tie_warnings(logical), *part_warnings(logical)]:
            progress.warn(finding)
        checked = f"{len(logical.plan.entries)} parameters against {len(logical.plan.headers)} tensors"
        stage.done(f"{checked}; {held}" if held else checked)
    if emit != BUNDLE:
        return emit_phase(emit, job.graph, layout, selection, out, store, dump_to, progress)
    physical = selection.laid_out(job)
    keys = CacheKeys.of(physical, layout, selection)
    if not force and bundles.is_up_to_date(out, keys.key):
        with progress.stage("Finding") as stage:
            stage.done(f"{out}, up to date")
        return out
    bundles.refuse(out, force=force)
    tokenizer = tokenizer_of(job)
    if tokenizer and tokenizer.warning:
        progress.warn(tokenizer.warning)
    with progress.stage("Exporting") as stage:
        program = encoded_program(job.graph, layout, selection.form, store)
        stage.done(f"{len(program.interface.entries)} entry points, {program.summary}")
    with (
        bundles.writing(out, force=force, progress=progress, inputs=job.checkpoint.files) as folder,
        dumping(job.graph, layout, selection, dump_to) as texts,
        selection.lower(program, folder, store, texts) as finish,
    ):
        with progress.stage("Writing") as stage:
            place = folder / bundles.WEIGHTS
            placed = place_weights(physical, layout.context, keys.weights, place, store, stage, verified=force)
            for finding in placed.warnings:
                progress.warn(finding)
            stage.done(placed.summary)
        write_tokenizer(tokenizer, folder)
        with progress.stage("Lowering") as stage:
            stage.done(finish())
        # Empty if a file of the checkpoint or of a model has changed in the meantime.
        inputs_unchanged = CacheKeys.of(physical, layout, selection) == keys
        inputs_key = keys.key if inputs_unchanged else ""
        words = manifest_of(physical, target, selection, layout, program.interface, inputs_key)
        bundles.seal(folder, {**words, "weights_form": form_of(job, logical)})
    if inputs_unchanged:
        placed.keep(store, out / bundles.WEIGHTS)
    store.trim()
    return out
