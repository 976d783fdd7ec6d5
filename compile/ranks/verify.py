"""Compares a graph on several ranks with the same graph on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.arguments import integer, path
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.folder import bundle_of, read_manifest
from bringup.compile.check.checker import check_job
from bringup.compile.job import Job, open_job
from bringup.compile.parity.parity import TOLERANCE, Layer, Parity, relative
from bringup.compile.parity.rounding import Bound, judge
from bringup.compile.program.export_options import context_of
from bringup.compile.ranks.divided import DividedGraph, Outputs
from bringup.compile.runtime.token_ids import check_vocabulary, integers
from bringup.compile.verify.command import TOKENS
from bringup.compile.verify.evidence import exact
from bringup.diagnostics import Diagnostic
from bringup.progress import Silent

if TYPE_CHECKING:
    from bringup.progress import Progress

FEW = 4  # parameters of a module that a finding lists


def verify_ranks(
    model: str | PathLike[str] | Job,
    checkpoint: str | PathLike[str] | None = None,
    *,
    parallel: Parallel,
    prompt_tokens: Iterable[SupportsIndex] | int | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compares the logits of all ranks of a division with those of the undivided graph, in float32.

    The ranks run in this process, one thread each: every rank has its part of the weights, as `convert` writes it, and
    they exchange sums and parts where the axes of the parameters require it. torch runs both graphs; nothing is
    compiled, and transformers is not needed. The weights are in memory in float32, once for each run.

    `model` is a model's name, a bundle's folder, or a job (`open_job`). `prompt_tokens` are token ids, or the number of
    seeded random ones (default 77). Inputs besides tokens have random rows. Raises the errors of `check`, BU007 for
    more tokens than positions, BU015 for invalid tokens, BU711 if a forward fails on a rank, and BU045, BU130 and BU138
    for a division that does not fit.
    """
    progress = progress or Silent()
    job = model if isinstance(model, Job) else _job(path("model", model), checkpoint)
    with progress.stage("Checking") as stage:
        report = check_job(job)
        report.raise_if_errors()
        for finding in report.warnings:
            progress.warn(finding)
        for number in range(parallel.size):
            rank_plan(job.plan, parallel, number, Stages.of(job.graph))
        stage.done(f"{len(job.plan.entries)} parameters")
    job = exact(job)
    if prompt_tokens is None:
        prompt_tokens = min(TOKENS, job.graph.config.max_positions)
    if isinstance(prompt_tokens, Iterable):
        tokens = integers(prompt_tokens)
    else:
        count = integer("prompt_tokens", prompt_tokens, minimum=1)
        tokens = np.random.default_rng(0).integers(0, job.graph.config.vocab_size, count).tolist()
    check_vocabulary(tokens, job.graph.config.vocab_size)
    context = context_of(job, len(tokens))
    with progress.stage("Comparing") as stage:
        wanted = DividedGraph(job, Parallel(), context).run(tokens)
        found = DividedGraph(job, parallel, context).run(tokens)
        parity = _parity(job, parallel, found, wanted)
        stage.done(f"{parity.tokens} tokens with {parity.reference}")
    return parity


def _job(model: str, checkpoint: str | PathLike[str] | None) -> Job:
    folder = bundle_of(model)
    return open_job(model, checkpoint) if folder is None else job_of_bundle(read_manifest(folder), checkpoint)


def _parity(job: Job, parallel: Parallel, found: Outputs, wanted: Outputs) -> Parity:
    sizes = ", ".join(f"{name} {size}" for name in ("tp", "ep", "pp") if (size := getattr(parallel, name)) > 1)
    parity = Parity(
        model=job.graph.config.family,
        target=f"{parallel.size} ranks" if parallel.size > 1 else "1 rank",
        dtype=job.graph.dtype,
        reference="the undivided graph",
        tolerance=TOLERANCE,
        tokens=len(wanted.logits),
        differences=[judge(sizes or "one rank", found.logits, Bound(wanted.logits), 0.0)],
        modules=list(_modules(found, wanted)),
    )
    if not parity.ok:
        parity.findings.append(_departs(job, parity))
    return parity


def _modules(found: Outputs, wanted: Outputs) -> Iterator[Layer]:
    """The modules whose output is complete on the first rank, in the order in which they finish."""
    for name, rows in wanted.modules.items():
        ours = found.modules.get(name)
        if ours is not None and ours.shape == rows.shape:
            yield Layer(name=name, given=None, output=relative(ours, rows), alone=None)


def _departs(job: Job, parity: Parity) -> Diagnostic:
    """BU710, with the axes of the parameters around the first module that departs."""
    first = next((layer for layer in parity.modules if layer.departs(parity.tolerance)), None)
    if first is None:
        where, listed = "the logits differ, and no module does", list[str]()
    else:
        where = f"the first module that differs is `{first.name}`, by {first.output:.1e} of its largest value"
        owner = first.name.rpartition(".")[0] if f"{first.name}.weight" in job.plan.signature else first.name
        listed = [f"`{name}` as `{axes}`" for name, axes in _matrices(job, owner)]
    help = "a rank has some indices of `h`, `g`, `f`, `e` or `vocab`, and its forward must compute these alone"
    if listed:
        help += f"; do the axes state what the forward computes? It declares {', '.join(listed[:FEW])}"
    message = f"{parity.target} do not compute the logits of the undivided graph; {where}"
    return Diagnostic(code="BU710", message=message, help=help, parameter=first.name if first else "")


def _matrices(job: Job, module: str) -> Iterator[tuple[str, str]]:
    """The matrices below a module, with their axes."""
    for name, declared in job.plan.signature.items():
        if name.startswith(f"{module}.") and len(declared.axes) > 1:
            yield name, " ".join(map(str, declared.axes))
