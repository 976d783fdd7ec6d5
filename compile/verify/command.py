"""Compares the logits of a program with those of a reference, and locates the first difference."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from bringup.arguments import integer, path
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.folder import MANIFEST, PARITY, bundle_of, check_files, read_manifest, steady
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import tensors_of_quantised
from bringup.compile.parity.activations import Saved, checked_place, fitted, load_activations, save_activations
from bringup.compile.parity.equal_scores import FirstOfEqual
from bringup.compile.parity.feeds import FEW, Run, feed, not_covered, plan_runs, windows, wrapping
from bringup.compile.parity.parity import TOLERANCE, Parity
from bringup.compile.parity.reference import Observed, Reference, known_config, record
from bringup.compile.pipeline import build
from bringup.compile.program.export_options import BUCKETS, DEFAULT_CONTEXT, context_of
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.runtime.session import Session, load
from bringup.compile.runtime.token_ids import integers
from bringup.compile.targets.registry import find
from bringup.compile.verify.attribution import Proof
from bringup.compile.verify.evidence import rounds
from bringup.diagnostics import BringupError, Severity, fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import State
from bringup.graphs.core.step import RING_GAIN, CacheSizes
from bringup.progress import Silent
from bringup.system.atomic import sha256, write_file

if TYPE_CHECKING:
    from bringup.progress import Progress

__all__ = ["activations", "load_activations", "parity_of", "record", "save_activations", "verify"]

TRANSFORMERS = "transformers"
DECODE_STEPS = 16
# Tokens for a model that is compiled for verification. They reach a second bucket and a second cache block.
TOKENS = 61 + DECODE_STEPS


def verify(
    model: str | PathLike[str] | Job,
    checkpoint: str | PathLike[str] | None = None,
    *,
    against: str | PathLike[str] = TRANSFORMERS,
    target: str = "torch",
    target_options: Mapping[str, str | int] | None = None,
    dtype: str = "auto",
    max_seq_len: int | None = None,
    prompt_tokens: Iterable[SupportsIndex] | int | None = None,
    decode_steps: int = DECODE_STEPS,
    bisect: bool = False,
    save: str | PathLike[str] | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compares a bundle, or a model compiled for the purpose, with a reference on the same checkpoint and config.

    `model` is a bundle's folder, a model's name, or a job (`open_job`). A model's name takes precedence over a bundle
    of that name, which is written as a path (`./gpt2`, or a `Path`). A bundle has its own config, adapter, dtype,
    target and context; of the options for these only `checkpoint` applies. `against` is `transformers` or a file of
    saved activations. `target_options` and `max_seq_len` are for compiling a model. `prompt_tokens` are the prompt's
    ids, or the number of seeded random ones; None selects prompts that reach every entry point. `bisect` locates the
    operation of a difference from torch. `save` writes activations: a folder, or a .safetensors file for the
    reference's alone. `executor` names a device of the target (`bringup targets` lists them); None is its default. A
    bundle gets the result as parity.json. Raises BU007 for a context that the model does not support, BU015 and BU016
    for invalid tokens, BU018 for a device that the target does not have, BU029 for a model with further inputs, BU608
    if a bundle's files differ from the compiled ones, BU703 if transformers has no such model, BU706 to BU708 for an
    unsuitable file of activations, and BU901 if nothing can be written to `save`.
    """
    save = checked_place(save)
    against = path("against", against)
    saved = load_activations(against) if against != TRANSFORMERS else None
    if saved and prompt_tokens is not None:
        raise fail("BU015", f"`{against}` has the tokens of its activations", help="leave the prompt out")
    if isinstance(prompt_tokens, Iterable):
        prompt_tokens = integers(prompt_tokens)
    elif prompt_tokens is not None:
        prompt_tokens = integer("prompt_tokens", prompt_tokens, minimum=1)
    decode_steps = integer("decode_steps", decode_steps, minimum=0)
    max_seq_len = None if max_seq_len is None else integer("max_seq_len", max_seq_len, minimum=1)
    model = model if isinstance(model, PathLike | Job) else path("model", model)
    progress = progress or Silent()

    def compared(bundle: Path, *, bundled: bool) -> Parity:
        with progress.stage("Comparing") as stage:
            parity = parity_of(
                load(bundle, executor), job, prompt_tokens, decode_steps,
                saved=saved, source=against, bundled=bundled, bisect=bisect, save=save,
            )  # fmt: skip
            stage.done(f"{parity.tokens} tokens with {parity.reference}")
        return parity

    folder = None if isinstance(model, Job) else bundle_of(model)
    if folder is not None:
        with steady(folder) as same:
            manifest = read_manifest(folder)
            check_files(folder, manifest)
            job = _verifiable(job_of_bundle(manifest, checkpoint))
            saved = saved and fitted(saved, job, against)
            parity = compared(folder, bundled=True)
            if same():  # otherwise another bundle was written there meanwhile
                write_parity(folder, parity, progress)
        return parity
    job = _verifiable(model if isinstance(model, Job) else open_job(model, checkpoint, dtype=dtype))
    if executor is not None:
        find(target).target.check_device(executor)
    if saved:  # all of these checks precede the compile
        saved = fitted(saved, job, against)
    elif job.checkpoint.format != "gguf":
        known_config(job.config)
    with tempfile.TemporaryDirectory(prefix="bringup-") as scratch:
        context = context_of(job, max_seq_len) if max_seq_len else _context(job, saved, prompt_tokens, decode_steps)
        out = build(
            job, out=Path(scratch, "b"), target=target, target_options=target_options, max_seq_len=context,
            buckets=_lengths(context), all_logits=True, progress=progress,
        )  # fmt: skip
        return compared(out, bundled=False)


def write_parity(bundle: Path, parity: Parity, progress: Progress) -> None:
    """Writes the result to a bundle as parity.json, atomically. If the bundle is not writable, this warns.

    The manifest does not list the file. Its key `manifest` is the SHA-256 of the manifest.json that it belongs to.
    """
    whole = {"manifest": sha256(bundle / MANIFEST), **parity.as_json()}
    try:
        write_file(bundle / PARITY, (json.dumps(whole, indent=2) + "\n").encode())
    except BringupError as error:
        for finding in error.findings:
            help = "the result above is not affected; --json prints it"
            progress.warn(replace(finding, severity=Severity.WARNING, help=help))


def _verifiable(job: Job) -> Job:
    """Returns the job. Raises BU029 for a model with further inputs, BU415 for one that quantises its weights."""
    if recipe := job.graph.options.quantize:
        message = (
            f"the weights are quantised by {recipe} as they are loaded: their logits are not those of the checkpoint"
        )
        help = "verify the model without --quantize, or a bundle that is compiled without it"
        raise fail("BU415", message, help=help)
    if not job.graph.inputs:
        return job
    message = ", ".join(f"`{name}`" for name in job.graph.inputs)
    help = "feed it yourself, with `Session.prefill(tokens, NAME=rows)`, and compare with a reference of your own"
    raise fail(
        "BU029",
        f"`{job.graph.config.family}` requires {message} besides tokens, and verify passes only tokens",
        help=help,
    )


def _context(job: Job, saved: Saved | None, prompt: list[int] | int | None, decode: int) -> int:
    """The context, in tokens, that a model is compiled for to be verified."""
    if saved:
        length = len(saved.tokens)
    elif prompt is None:
        reach = [window + DECODE_STEPS for window in windows(job.graph) if window + DECODE_STEPS <= DEFAULT_CONTEXT]
        length = max([TOKENS, *reach, *_ring_contexts(job.graph)])
    else:
        length = (prompt if isinstance(prompt, int) else len(prompt)) + decode
    return min(job.graph.config.max_positions, max(length, 64))


def _lengths(context: int) -> Sequence[int]:
    """The prefill lengths to compile a model for, all of which a prompt of `context` tokens or fewer uses: `chunks_of`
    uses a length only if half of it is filled."""
    return BUCKETS if max(BUCKETS) <= 2 * context else (min(BUCKETS), 2 * min(BUCKETS))


def _ring_contexts(graph: Graph) -> Iterator[int]:
    """For each window that a few tokens fill, the smallest context for which a program has a ring."""
    chunk, context = max(BUCKETS), graph.config.max_positions
    for window in {leaf.window for _, leaf in graph.leaves(State)}:
        ring = CacheSizes(context=context, chunk=chunk).ring(window)
        if ring and wrapping(ring, chunk) + FEW <= DEFAULT_CONTEXT:
            yield RING_GAIN * ring


def parity_of(
    session: Session,
    job: Job,
    prompt_tokens: list[int] | int | None = None,
    decode_steps: int = DECODE_STEPS,
    *,
    saved: Saved | None = None,
    source: str = "",
    bundled: bool = False,
    bisect: bool = False,
    save: str | Path | None = None,
) -> Parity:
    """Compares the logits of a session with those of transformers, or with saved activations; see `verify`.

    `saved` is a result of `fitted`, `source` its file. `bundled`: the session's weights are those of a bundle, which
    may differ from the job's.
    """
    config, dtype = job.graph.config, job.graph.dtype
    spans = windows(job.graph)
    cap = min(session.max_seq_len, len(saved.tokens)) if saved else session.max_seq_len
    if saved or prompt_tokens is None:
        runs = plan_runs(session.interface, cap, decode_steps, spans)
    else:
        prompt = prompt_tokens if isinstance(prompt_tokens, int) else len(prompt_tokens)
        runs = [Run(prompt, max(0, min(decode_steps, cap - prompt)))]
    length = max(run.end for run in runs)
    tokens = saved.tokens if saved else _random(0, config.vocab_size, length)
    if isinstance(prompt_tokens, list) and not saved:
        tokens = [*prompt_tokens, *tokens[len(prompt_tokens) :]]
    tokens = tokens[:length]
    with FirstOfEqual():
        feeds = feed(session, tokens, runs)

    def rounded() -> Observed:
        return Reference(job.checkpoint, job.config, dtype, job.graph.cache_dtype).observe(tokens)

    parts = tensors_of_quantised(job.plan)
    reference = saved or Reference(job.checkpoint, job.config, "float32", parts=parts).observe(tokens)
    measured = bool(saved) or not rounds(job) or job.graph.options.activations is not None
    parity = Parity(
        model=config.family,
        target=session.manifest["target"],
        dtype=dtype,
        reference=reference.name,
        tolerance=TOLERANCE,
        tokens=length,
    )
    with FirstOfEqual():
        proof = Proof(session, job, reference, tokens, feeds, None if measured else rounded)
        proof.compare(parity)
        proof.explain(parity, source=source, bundled=bundled, bisect=bisect)
        if save:
            proof.save(Path(save))
    parity.findings += not_covered(session.interface, feeds, spans, _advice(session, job, saved, bundled=bundled))
    return parity


def _advice(session: Session, job: Job, saved: Saved | None, *, bundled: bool) -> Callable[[int], str]:
    """The advice for verifying a given number of tokens."""

    def advice(count: int) -> str:
        if saved:
            return f"record activations of at least {count} tokens"
        if count <= session.max_seq_len:
            tokens = "1 token" if count == 1 else f"{count} tokens"
            return f"give a prompt of at least {tokens}: --prompt-length {count}"
        if count > job.graph.config.max_positions:
            return f"the model has {job.graph.config.max_positions} positions: no prompt reaches it"
        again = "compile the bundle" if bundled else "verify"
        return f"{again} with --max-seq-len {count}, or longer"

    return advice


def _random(seed: int, vocab: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def activations(job: Job, tokens: list[int]) -> dict[str, np.ndarray]:
    """The inputs and outputs of every module of the graph, run by torch with the job's weights: see `record`."""
    from bringup.compile.bisect.eager import Eager

    eager = Eager(job, len(tokens))
    return record(eager.module, lambda: eager(sequence_step(tokens, 0, len(tokens), len(tokens))))
