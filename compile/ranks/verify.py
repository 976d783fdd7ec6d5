"""Compares a graph on several ranks with the same graph on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages
from bringup.arguments import integer, path
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.bundle.folder import bundle_of, read_manifest
from bringup.compile.check.checker import check_job
from bringup.compile.check.ranks import divide
from bringup.compile.job import Job, open_job
from bringup.compile.parity.activations import not_finite
from bringup.compile.parity.parity import TOLERANCE, Difference, Layer, Parity, relative
from bringup.compile.parity.rounding import Bound, judge
from bringup.compile.ranks.divided import DividedGraph, Outputs
from bringup.compile.runtime.token_ids import check_vocabulary, integers
from bringup.compile.verify.command import TOKENS
from bringup.compile.verify.evidence import exact
from bringup.diagnostics import Diagnostic, fail
from bringup.progress import Silent

if TYPE_CHECKING:
    from bringup.progress import Progress

ONE = "the undivided graph"
FEW = 4  # parameters of a module that a finding lists


def verify_ranks(
    model: str | PathLike[str] | Job,
    checkpoint: str | PathLike[str] | None = None,
    *,
    parallel: Parallel,
    prompt_tokens: Iterable[SupportsIndex] | int | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compares the logits of each rank of a division with those of the undivided graph, in float32.

    The ranks run in this process, one thread each: every rank has its part of the weights, by the same plan as
    `convert`, and they exchange sums and parts around the layers whose parameters they divide. torch runs both graphs;
    nothing is compiled, and transformers is not needed. The weights are in memory in float32, once for each run.

    `model` is a model's name, a bundle's folder, or a job (`open_job`). `prompt_tokens` are token ids, or the number of
    seeded random ones (default 77). Inputs besides tokens have random rows. Raises the errors of `check`, also of its
    ranks; BU007 for more tokens than positions; BU015 for invalid tokens; BU708 if the undivided graph computes NaN;
    BU711 if a forward fails on a rank, and BU712 if it is not known where ranks exchange.
    """
    progress = progress or Silent()
    job = model if isinstance(model, Job) else _job(model, checkpoint)
    with progress.stage("Checking") as stage:
        report = check_job(job)
        report.findings += divide(job.plan, parallel, Stages.of(job.graph), packed=False).refusals
        report.raise_if_errors()
        for finding in report.warnings:
            progress.warn(finding)
        stage.done(f"{len(job.plan.entries)} parameters")
    job = exact(job)
    tokens = _tokens(job, prompt_tokens)
    with progress.stage("Comparing") as stage:
        wanted = DividedGraph(job, Parallel(), len(tokens)).run(tokens)
        _refuse_nan(wanted)
        divided = DividedGraph(job, parallel, len(tokens))
        found = divided.run(tokens)
        differences = [_difference(parallel, rank, logits, wanted) for rank, logits in enumerate(found.logits)]
        worst = max(range(len(differences)), key=lambda rank: (not differences[rank].ok, differences[rank].excess))
        if worst:
            found = divided.run(tokens, worst)
        parity = _parity(job, parallel, differences[worst], _modules(found, wanted))
        stage.done(f"{parity.tokens} tokens with {parity.reference}")
    return parity


def _job(model: str | PathLike[str], checkpoint: str | PathLike[str] | None) -> Job:
    model = model if isinstance(model, PathLike) else path("model", model)
    folder = bundle_of(model)
    return open_job(model, checkpoint) if folder is None else job_of_bundle(read_manifest(folder), checkpoint)


def _tokens(job: Job, prompt: Iterable[SupportsIndex] | int | None) -> list[int]:
    config = job.graph.config
    if isinstance(prompt, Iterable):
        tokens = integers(prompt)
    else:
        count = min(TOKENS, config.max_positions) if prompt is None else integer("prompt_tokens", prompt, minimum=1)
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, count).tolist()
    check_vocabulary(tokens, config.vocab_size)
    if len(tokens) > config.max_positions:
        message = f"{len(tokens):,} tokens are more than the model's {config.max_positions:,} positions"
        raise fail("BU007", message, help=f"give at most {config.max_positions:,} tokens")
    return tokens


def _refuse_nan(wanted: Outputs) -> None:
    """Raises BU708 for the first module of the undivided graph with NaN; logits may be -infinity."""
    for name, rows in {**wanted.modules, "logits": wanted.logits[0]}.items():
        if np.isnan(rows).any():
            raise not_finite(ONE, name, np.where(np.isnan(rows), rows, 0))


def _difference(parallel: Parallel, rank: int, logits: np.ndarray, wanted: Outputs) -> Difference:
    """The difference of one rank's logits. Those of tokens that both never propose, -infinity, are equal."""
    sizes = [f"{name} {size}" for name in ("tp", "ep", "pp") if (size := getattr(parallel, name)) > 1]
    expected = wanted.logits[0]
    never = np.isneginf(expected) & np.isneginf(logits)
    least = expected[np.isfinite(expected)].min(initial=0.0)
    bound = Bound(np.where(never, least, expected))
    found = judge(", ".join(sizes) or "one rank", np.where(never, least, logits), bound, 0.0)
    return found if found.ok else replace(found, phase=f"{found.phase}: rank {rank}")


def _parity(job: Job, parallel: Parallel, difference: Difference, modules: Iterator[Layer]) -> Parity:
    parity = Parity(
        model=job.graph.config.family,
        target=f"{parallel.size} ranks" if parallel.size > 1 else "1 rank",
        dtype=job.graph.dtype,
        reference=ONE,
        tolerance=TOLERANCE,
        tokens=difference.rows,
        differences=[difference],
        modules=list(modules),
    )
    if not parity.ok:
        parity.findings.append(_departs(job, parity))
    return parity


def _modules(found: Outputs, wanted: Outputs) -> Iterator[Layer]:
    """The modules whose output is complete on the observed rank, in the order in which they finish."""
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
