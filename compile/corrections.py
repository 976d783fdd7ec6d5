"""Sizes of a config that the tensors contradict: what follows from one wrong size is one finding.

A size is corrected as the tensors have it, and the checkpoint is planned once more. When less is wrong then and nothing
new, what has gone were consequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.compile.config_words import ConfigWords
from bringup.compile.job import replanned
from bringup.compile.shapes import off_axes
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.axes import AxesError

if TYPE_CHECKING:
    from bringup.compile.job import Job

MOST = 2  # corrections tried at a time: each plans the whole checkpoint


def correction(job: Job, words: ConfigWords) -> Iterator[tuple[str, int, Job]]:
    """Config keys with the sizes that tensors have, most tensors first, and the job with each corrected."""
    found: dict[str, Counter[int]] = {}
    for problem in job.plan.problems:
        for off in off_axes(job.plan, problem) if problem.code == "BU102" else ():
            keys = words.of(problem.parameter, off.axis.split())
            for key in keys:
                stated = job.config.get(key) or (off.wanted if len(keys) == 1 else 0)
                if isinstance(stated, int) and stated and not stated * off.found % off.wanted:
                    found.setdefault(key, Counter())[stated * off.found // off.wanted] += 1
    for key in sorted(found, key=lambda key: -found[key].total())[:MOST]:
        size = found[key].most_common(1)[0][0]
        try:
            made = replanned(job, {**job.config, key: size})
        except (BringupError, AxesError):
            continue
        if _facts(made) < _facts(job):
            yield key, size, made


def _facts(job: Job) -> set[object]:
    problems = {(p.code, p.parameter, p.sources, p.actual) for p in job.plan.problems}
    return {*problems, *job.plan.unread, *((f.code, f.parameter) for f in job.findings)}


def explained(finding: Diagnostic, key: str, size: int, others: int) -> Diagnostic:
    """The finding of a wrong size that others follow from."""
    more = "another finding follows" if others == 1 else f"{others} other findings follow"
    help = f"correct `{key}` to {size} ({more} from it), or the checkpoint belongs to another config"
    return replace(finding, help=help)
