"""A checkpoint in a quantised format that no rule reads, or a config with a format that its tensors contradict.

Each is one finding, whatever is missing and unread because of it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import part_of, quantization_words, without_quantization
from bringup.adapters.schemes.registry import read_quantisation
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.unruled import tensors_of_unruled
from bringup.compile.check.quantisation.cause import CONFIG_KEYS, bare_names
from bringup.compile.check.quantisation.config import incomplete, of_another, otherwise, unquantised
from bringup.compile.check.quantisation.foreign import foreign
from bringup.compile.job import Job, replanned
from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.graphs.core.axes import AxesError
from bringup.spec import FLOATS


class Explained(NamedTuple):
    """A job without the tensors that its quantisation explains, and the findings on it. `unread` counts tensors."""

    job: Job
    findings: Sequence[Diagnostic] = ()
    unread: int = 0


def without_quantised(job: Job, misnamed: Container[str]) -> Explained:
    """Separates the consequences of a quantisation that the job's rules do not read from all other facts.

    `misnamed` are unread matrices that rules would read under another name.
    """
    on_config = [finding for finding in job.findings if finding.parameter in CONFIG_KEYS]
    doubts = [finding for finding in on_config if finding.severity is not Severity.ERROR]
    on_config = [finding for finding in on_config if finding not in doubts]
    plan = job.plan
    if not (plan.problems or plan.unread or on_config):
        return Explained(job)
    words, unruled = quantization_words(job.config), tensors_of_unruled(plan)
    causes = [*otherwise(job, words)] if words else []
    if not causes and not on_config and _has_wrong_words(job):
        return _without(job, _parts(plan))
    causes = causes or [*foreign(job, words, unruled, misnamed)]
    if not causes and words:
        causes = [*unquantised(job, words, stated=bool(on_config))]
        if causes and (plain := _as_plain(job)):
            plain = replace(plain, findings=[finding for finding in plain.findings if finding not in doubts])
            return Explained(plain, _with_doubts(causes, doubts), len(plan.unread) - len(plain.plan.unread))
        causes = causes or [*of_another(job, words)] or [*incomplete(job, words)]
    if not causes:
        return Explained(job)
    rest = _without(job, {name for cause in causes for name in bare_names(plan, cause.tensors)})
    keys = {key for cause in causes for key in cause.keys}
    of_words = [f for f in job.findings if f.parameter in keys or (f.code == "BU120" and f.parameter in words)]
    findings = [finding for finding in job.findings if finding not in (*on_config, *doubts, *of_words)]
    return Explained(replace(rest.job, findings=findings), _with_doubts(causes, doubts), rest.unread)


def _with_doubts(causes: Sequence[Cause], doubts: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The findings of the causes; the first includes the warnings on the config, which concern the same mistake."""
    first, *others = (cause.finding for cause in causes)
    return [replace(first, help="; ".join([first.help, *(doubt.message for doubt in doubts)])), *others]


def _has_wrong_words(job: Job) -> bool:
    """Whether a key of the quantisation has an unsupported value, in whose place another one is planned."""
    errors = (f for f in read_quantisation(job.config, job.family.name).findings if f.severity is Severity.ERROR)
    return any(finding.stops or finding.code == "BU122" for finding in errors)


def _parts(plan: Plan) -> set[str]:
    """Every tensor of a quantised matrix that is unread, or that a problem names."""
    stems = {part[0] for name in bare_names(plan, plan.headers) if (part := part_of(name))}
    named = [*plan.unread, *(name for problem in plan.problems for name in problem.sources)]
    return {name for name in bare_names(plan, named) if name in stems or part_of(name)}


def _without(job: Job, tensors: Container[str]) -> Explained:
    """The job without the errors of some tensors, by their names without prefix."""
    plan = job.plan
    unread = [name for name in plan.unread if name.removeprefix(plan.prefix) not in tensors]
    problems = [left for p in plan.problems if (left := _remaining(p, tensors, plan.prefix))]
    rest = replace(plan, problems=problems, unread=unread)
    return Explained(replace(job, plan=rest), (), len(plan.unread) - len(unread))


def _as_plain(job: Job) -> Job | None:
    """The job of plain tensors whose config states a quantisation; None if that does not explain the missing tensors.

    Mistakes in the tensors are then found as if the config did not have it.
    """
    with suppress(BringupError, AxesError):
        plain = replanned(job, without_quantization(job.config))
        headers = plain.plan.headers
        if not any(part_of(name) for name in headers) and all(info.dtype in FLOATS for info in headers.values()):
            return plain
    return None


def _remaining(problem: Problem, tensors: Container[str], prefix: str) -> Problem | None:
    """The remaining problem: for absent tensors without the explained ones, otherwise all or nothing."""
    left = tuple(name for name in problem.sources if name.removeprefix(prefix) not in tensors)
    if len(left) == len(problem.sources):
        return problem
    return replace(problem, sources=left) if left and problem.code in ("BU101", "BU109") else None
