"""Proof by numbers: a program's logits against a reference's, and, where they part, the place where they do."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from bringup.arguments import path, whole
from bringup.compile.activations import Saved, fitted, load_activations, save_activations
from bringup.compile.bundle import bundle_of, check_files, read_manifest
from bringup.compile.feeds import Run, feed, not_covered, plan_runs, windows
from bringup.compile.job import Job, open_job
from bringup.compile.parity import TOLERANCE, Parity, compare
from bringup.compile.pipeline import DEFAULT_CONTEXT, build
from bringup.compile.proof import Proof
from bringup.compile.reference import Reference, known_config, record
from bringup.compile.session import Session, integers, load
from bringup.compile.steps import make_step
from bringup.diagnostics import fail
from bringup.progress import Silent

if TYPE_CHECKING:
    from bringup.progress import Progress

__all__ = ["activations", "load_activations", "parity_of", "record", "save_activations", "verify"]

TRANSFORMERS = "transformers"
DECODE_STEPS = 16
# For a model that is compiled to be verified: into a second bucket and a second cache block.
TOKENS = 61 + DECODE_STEPS


def verify(
    model: str | PathLike[str],
    checkpoint: str | PathLike[str] | None = None,
    *,
    against: str | PathLike[str] = TRANSFORMERS,
    target: str = "torch",
    dtype: str = "auto",
    prompt_tokens: Iterable[SupportsIndex] | int | None = None,
    decode_steps: int = DECODE_STEPS,
    bisect: bool = False,
    save: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compares a bundle, or a model compiled for the occasion, with a reference on the same checkpoint and config.

    A model's name wins over a bundle of that name, which is written as a path (`./gpt2`, or a `Path`).
    `against` is `transformers` or a file of saved activations. `prompt_tokens` are the prompt's ids, or how many seeded
    random ones; None chooses prompts that reach every entry point. `bisect` follows a departure from torch down to an
    operation. `save` keeps activations: a folder, or a .safetensors file for the reference's alone. A bundle gets the
    result as parity.json. Raises BU029 for a model that takes more than tokens, BU608 when a bundle's files are not
    those that were compiled, BU703 when transformers has no such model, BU706 to BU708 for a file of activations that
    does not serve.
    """
    against = path("against", against)
    saved = load_activations(against) if against != TRANSFORMERS else None
    if isinstance(prompt_tokens, Iterable):
        prompt_tokens = integers(prompt_tokens)
    elif prompt_tokens is not None:
        prompt_tokens = whole("prompt_tokens", prompt_tokens, least=1)
    decode_steps = whole("decode_steps", decode_steps, least=0)
    model = model if isinstance(model, PathLike) else path("model", model)
    save = None if save is None else path("save", save)
    progress = progress or Silent()

    def compared(bundle: Path, *, bundled: bool) -> Parity:
        with progress.stage("Comparing") as stage:
            parity = parity_of(
                load(bundle), job, prompt_tokens, decode_steps,
                saved=saved, source=against, bundled=bundled, bisect=bisect, save=save,
            )  # fmt: skip
            stage.done(f"{parity.tokens} tokens with {parity.reference}")
        return parity

    if folder := bundle_of(model):
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        job = _of_tokens(job_of_bundle(manifest, checkpoint))
        saved = saved and fitted(saved, job, against)
        parity = compared(folder, bundled=True)
        (folder / "parity.json").write_text(json.dumps(parity.as_json(), indent=2) + "\n", "utf-8")
        return parity
    job = _of_tokens(open_job(model, checkpoint, dtype=dtype))
    if saved:  # all of this before the work of compiling
        saved = fitted(saved, job, against)
    elif job.checkpoint.format != "gguf":
        known_config(job.config)
    with tempfile.TemporaryDirectory(prefix="bringup-") as scratch:
        context = _context(job, saved, prompt_tokens, decode_steps)
        out = build(job, out=Path(scratch, "b"), target=target, max_seq_len=context, all_logits=True, progress=progress)
        return compared(out, bundled=False)


def _of_tokens(job: Job) -> Job:
    """A job whose model can be run on tokens alone; any other raises BU029."""
    if not job.graph.inputs:
        return job
    said = ", ".join(f"`{name}`" for name in job.graph.inputs)
    help = "feed it yourself, with `Session.prefill(tokens, NAME=rows)`, and compare with a reference of your own"
    raise fail(
        "BU029", f"`{job.graph.config.family}` takes {said} beside its tokens; verify has only tokens", help=help
    )


def _context(job: Job, saved: Saved | None, prompt: list[int] | int | None, decode: int) -> int:
    """How many tokens a model is compiled for to be verified."""
    if saved:
        length = len(saved.tokens)
    elif prompt is None:
        reach = [window + DECODE_STEPS for window in windows(job.graph) if window + DECODE_STEPS <= DEFAULT_CONTEXT]
        length = max(TOKENS, *reach) if reach else TOKENS
    else:
        length = (prompt if isinstance(prompt, int) else len(prompt)) + decode
    return min(job.graph.config.max_positions, max(length, 64))


def job_of_bundle(manifest: dict[str, Any], checkpoint: str | PathLike[str] | None) -> Job:
    """The job that a bundle was built from: the same model, config, adapter and allowances."""
    return open_job(
        manifest["asked_model"] or manifest["model"],
        _source(manifest["provenance"]) if checkpoint is None else checkpoint,
        config=manifest["config"] or None,
        adapter=manifest.get("adapter"),
        allow=manifest.get("allow"),
        dtype=manifest["dtype"],
    )


def _source(provenance: dict[str, Any]) -> str:
    """Where the tensors came from: on the Hub the same revision, on this machine the same place from any folder."""
    source: str = provenance["source"]
    if source == "dict":
        help = "name a checkpoint with the same tensors: --checkpoint SRC"
        raise fail("BU005", "the bundle was built from arrays in memory", help=help)
    if source.startswith("hf://") and "revision" in provenance:
        return f"{source.partition('@')[0]}@{provenance['revision']}"
    return source if re.match(r"\w+:", source) else provenance.get("path", source)


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
    """Prefill and decode logits of a session against transformers', or against saved activations; see `verify`.

    `saved` is one that `fitted` gave, `source` its file. `bundled`: the session's weights come from a bundle that may
    not be the job's.
    """
    config, dtype = job.graph.config, job.graph.dtype
    spans = windows(job.graph)
    cap = min(session.max_seq_len, len(saved.tokens)) if saved else session.max_seq_len
    if saved or prompt_tokens is None:
        runs = plan_runs(session.interface, cap, decode_steps, spans)
    else:
        runs = [Run(prompt_tokens if isinstance(prompt_tokens, int) else len(prompt_tokens), decode_steps)]
    length = max(run.end for run in runs)
    tokens = saved.tokens if saved else _random(0, config.vocab_size, length)
    if isinstance(prompt_tokens, list) and not saved:
        tokens = [*prompt_tokens, *tokens[len(prompt_tokens) :]]
    reference = saved or Reference(job.checkpoint, job.config, dtype)
    proof = Proof(session, job, reference, tokens[:length], feed(session, tokens, runs))
    parity = Parity(
        model=config.family,
        target=session.manifest["target"],
        dtype=dtype,
        reference=reference.name,
        tolerance=TOLERANCE[dtype],
        tokens=length,
    )
    wanted = proof.wanted
    for entry in session.interface.entries:
        feeds = [feed for feed in proof.feeds if feed.entry == entry.name]
        if feeds:
            ours = np.concatenate([feed.logits for feed in feeds])
            parity.differences.append(compare(entry.name, ours, np.concatenate([feed.rows(wanted) for feed in feeds])))
    proof.explain(parity, source=source, bundled=bundled, bisect=bisect)
    parity.findings += not_covered(session.interface, proof.feeds, spans)
    if save:
        proof.save(Path(save))
    return parity


def _random(seed: int, vocab: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def activations(job: Job, tokens: list[int]) -> dict[str, np.ndarray]:
    """What every module of our graph takes and gives, run by torch on the job's weights; see `reference.record`."""
    from bringup.compile.bisect.eager import Eager

    eager = Eager(job, len(tokens))
    return record(eager.module, lambda: eager(make_step(tokens, 0, len(tokens), len(tokens))))
