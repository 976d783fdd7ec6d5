# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Proof by numbers: a bundle's logits against transformers', and, where they part, the first module that does."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.adapters.materialise import materialise
from bringup.compile.bundle import MANIFEST, check_files, read_manifest
from bringup.compile.job import Job, open_job
from bringup.compile.parity import TOLERANCE, Parity, compare
from bringup.compile.pipeline import build
from bringup.compile.reference import Reference, known_config, record
from bringup.compile.session import Session, load
from bringup.compile.steps import make_step, slots_for
from bringup.diagnostics import Diagnostic, fail

if TYPE_CHECKING:
    from bringup.progress import Progress


def verify(
    model: str,
    checkpoint: str | None = None,
    *,
    target: str = "torch",
    dtype: str = "auto",
    prompt_tokens: list[int] | int = 48,
    decode_steps: int = 16,
    progress: Progress | None = None,
) -> Parity:
    """Compares a bundle, or a model compiled for the occasion, with transformers on the same checkpoint and config.

    `prompt_tokens` are the prompt's ids, or how many seeded random ones. A bundle gets the result as parity.json.
    Raises BU608 when a bundle's files are not those that were compiled, BU703 when transformers has no such model.
    """
    folder = Path(model)
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        job = _job_of_bundle(manifest, checkpoint)
        parity = parity_of(load(folder), job, prompt_tokens, decode_steps)
        (folder / "parity.json").write_text(json.dumps(parity.as_json(), indent=2) + "\n", "utf-8")
        return parity
    job = open_job(model, checkpoint, dtype=dtype)
    if job.checkpoint.format != "gguf":  # before the work of compiling
        known_config(job.config)
    with tempfile.TemporaryDirectory(prefix="bringup-") as scratch:
        length = (prompt_tokens if isinstance(prompt_tokens, int) else len(prompt_tokens)) + decode_steps
        context = min(job.graph.config.max_positions, max(length, 64))
        out = build(job, out=Path(scratch, "b"), target=target, max_seq_len=context, all_logits=True, progress=progress)
        return parity_of(load(out), job, prompt_tokens, decode_steps)


def _job_of_bundle(manifest: dict[str, Any], checkpoint: str | None) -> Job:
    """The job that a bundle was built from: the same model, config, adapter and allowances."""
    return open_job(
        manifest["asked_model"] or manifest["model"],
        checkpoint or _source(manifest["provenance"]),
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


def parity_of(session: Session, job: Job, prompt_tokens: list[int] | int, decode_steps: int) -> Parity:
    """Prefill and decode logits of a session against transformers'."""
    vocab = job.graph.config.vocab_size
    prompt = _random(0, vocab, prompt_tokens) if isinstance(prompt_tokens, int) else prompt_tokens
    more = _random(1, vocab, decode_steps)
    reference = Reference(job.checkpoint, job.config, job.graph.dtype)
    wanted = reference.logits([*prompt, *more])
    session.reset()
    prefill = session.prefill(prompt)
    decoded = np.stack([session.decode(token) for token in more]) if more else prefill[:0]
    parity = Parity(
        model=job.graph.config.family,
        target=session.manifest["target"],
        dtype=job.graph.dtype,
        reference=reference.name,
        tolerance=TOLERANCE[job.graph.dtype],
    )
    end = len(prompt)
    parity.differences.append(compare("prefill", prefill, wanted[end - len(prefill) : end]))
    if more:
        parity.differences.append(compare("decode", decoded, wanted[end:]))
    if not parity.ok:
        parity.findings.append(_departure(job, reference, prompt, parity))
    return parity


def _random(seed: int, vocab: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def _departure(job: Job, reference: Reference, tokens: list[int], parity: Parity) -> Diagnostic:
    """The first module, in the order of computing, whose output is not the reference's."""
    theirs, ours = reference.activations(tokens), activations(job, tokens)
    shared = [name for name in ours if name in theirs and theirs[name].shape == ours[name].shape]
    for name in shared:
        difference = compare(name, ours[name].reshape(len(tokens), -1), theirs[name].reshape(len(tokens), -1))
        if not difference.relative <= parity.tolerance:
            return Diagnostic(
                code="BU701",
                message=f"the first module that departs from {parity.reference} is `{name}`: "
                f"{difference.relative:.1e} of max |reference|, tolerance {parity.tolerance:g}",
                help="look at its forward and at the rules of its parameters: `bringup explain PARAMETER`",
                parameter=name,
                sources=tuple(n for n in job.plan.entries if n.startswith(f"{name}.")),
            )
    return Diagnostic(
        code="BU702",
        message=f"all {len(shared)} modules agree with {parity.reference} when run by torch, "
        f"the compiled program for `{parity.target}` does not",
        help="the lowering is at fault; `--target torch` is right",
    )


def activations(job: Job, tokens: list[int]) -> dict[str, np.ndarray]:
    """The output of every module of our graph, run by torch on the job's weights."""
    import torch

    from bringup.compile.run.torch import to_tensor
    from bringup.graphs.graph import Step
    from bringup.graphs.torch_module import to_torch

    length = len(tokens)
    module: Any = to_torch(job.graph, job.graph.dtype, positions=length, slots=slots_for(length))
    for name, array in materialise(job.plan, job.checkpoint).items():
        owner, _, leaf = name.rpartition(".")
        module.get_submodule(owner)._parameters[leaf] = torch.nn.Parameter(to_tensor(array), requires_grad=False)
    for owner in module.modules():
        for name, buffer in list(owner._buffers.items()):
            if buffer.is_meta:
                owner._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    step = Step(*(torch.from_numpy(field) for field in make_step(tokens, 0, length, length).values()))

    def run() -> None:
        x, *shared = module.prologue(step)
        for layer in module.layers:
            x = layer(x, *shared, step)
        module.epilogue(x)

    with torch.no_grad():
        return record(module, run)
