"""Sizes of a config that the tensors contradict: what follows from one wrong size is one finding.

A size is corrected as the tensors have it, and the checkpoint is planned once more. When less is wrong then and nothing
new, what has gone were consequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.compile.config_words import ConfigWords
from bringup.compile.job import replanned
from bringup.compile.shapes import Off, off_axes
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.axes import AxesError

if TYPE_CHECKING:
    from bringup.compile.job import Job

MOST = 2  # corrections tried at a time: each plans the whole checkpoint


def known_sizes(job: Job) -> Job:
    """The job with the sizes that its config does not say taken from the tensors, as far as these say them."""
    rest = set(job.unknown)
    while rest and (found := next((c for c in corrections(job, ConfigWords(job), rest) if c[0] in rest), None)):
        key, _, made = found
        rest.remove(key)
        job = replace(made, unknown=job.unknown - {key})
    return job


def corrections(job: Job, words: ConfigWords, first: Collection[str] = ()) -> Iterator[tuple[str, int, Job]]:
    """Config keys with the sizes that tensors have, and the job with each corrected: those in `first` before others.

    A correction holds where fewer tensors are wrong with it, and none that was not wrong before.
    """
    found: dict[str, Counter[int]] = {}
    example: dict[Off, str] = {}
    counts: Counter[Off] = Counter()
    for problem in job.plan.problems:
        for off in off_axes(job.plan, problem) if problem.code == "BU102" else ():
            example.setdefault(off, problem.parameter)
            counts[off] += 1
    for off, count in counts.items():
        keys = words.of(example[off], off.axis.split())
        for key in keys:
            stated = job.config.get(key) or (off.wanted if len(keys) == 1 else 0)
            if isinstance(stated, int) and stated and not stated * off.found % off.wanted:
                found.setdefault(key, Counter())[stated * off.found // off.wanted] += count
    ordered = sorted(found, key=lambda key: (key not in first, -found[key].total()))
    sizes = [(key, found[key].most_common(1)[0][0]) for key in ordered[:MOST]]
    for key, size in [*sizes, *_fewer_layers(job)]:
        made = _corrected(job, {key: size}) or _corrected(job, {**dict.fromkeys(first, 1), key: size})
        if made and _facts(made) < _facts(job):
            yield key, size, made


def _corrected(job: Job, sizes: Mapping[str, int]) -> Job | None:
    try:
        return replanned(job, {**job.config, **sizes})
    except (BringupError, AxesError):
        return None  # no model has these sizes


def _fewer_layers(job: Job) -> Iterator[tuple[str, int]]:
    """The keys that may say how many layers there are, with the number that the checkpoint has."""
    path, count = f"{job.graph.layer_path}.", len(job.graph.layers)
    if not any(p.code == "BU101" and p.parameter.startswith(f"{path}{count - 1}.") for p in job.plan.problems):
        return
    there = (int(name[len(path) :].partition(".")[0]) for name in job.plan.entries if name.startswith(path))
    last = max(there, default=0)
    yield from ((key, last + 1) for key, value in job.config.items() if type(value) is int and value == count)


def _facts(job: Job) -> set[str]:
    """What is wrong: tensors, parameters and config keys, whatever it is that is wrong with them."""
    wrong = {name for p in job.plan.problems for name in p.sources or (p.parameter,)}
    return {*wrong, *job.plan.unread, *(f"config: {finding.parameter}" for finding in job.findings)}


def explained(finding: Diagnostic, key: str, size: int, others: int) -> Diagnostic:
    """The finding of a wrong size, with how many others follow from it."""
    if others < 1:
        return finding
    more = "another finding follows" if others == 1 else f"{others} other findings follow"
    if not finding.config_key:
        return replace(finding, help=f"{finding.help}; with `{key}` = {size} it fits ({more} from it)")
    help = f"correct `{key}` to {size} ({more} from it), or the checkpoint belongs to another config"
    return replace(finding, help=help)
