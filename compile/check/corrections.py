"""Config keys that the tensors contradict: all consequences of one wrong key are one finding.

A key is corrected to the value of the tensors, and the checkpoint is planned again. If it then has fewer errors and no
new ones, the errors that disappeared were consequences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.adapters.planning.quantization import part_of
from bringup.compile.check.facts.config_keys import ConfigWords
from bringup.compile.check.facts.shapes import Off, keys_of, off_axes
from bringup.compile.job import replanned
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.core.axes import AxesError

if TYPE_CHECKING:
    from bringup.compile.job import Job

UNREAD = ("BU105", "BU137")  # findings of unread tensors
BIASES = ("attention_bias", "mlp_bias")  # keys that configs often omit
DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers")  # names of the number of layers after the last: of drafts
FOLLOW = ("BU101", "BU102", *UNREAD)  # what may follow from a wrong size
MOST = 2  # corrections that are combined: each plans the whole checkpoint


def known_sizes(job: Job) -> Job:
    """The job with the sizes that its config lacks, as far as the tensors determine them."""
    rest = set(job.unknown)
    while rest and (found := next((c for c in corrections(job, ConfigWords(job), rest) if c[0] in rest), None)):
        key, _, corrected = found
        rest.remove(key)
        job = replace(corrected, unknown=job.unknown - {key})
    return job


def corrections(job: Job, words: ConfigWords, first: Collection[str] = ()) -> Iterator[tuple[str, object, Job]]:
    """Config keys with the values of the tensors, and the job with each corrected: those in `first` before others.

    A correction is valid if it leaves fewer tensors wrong, and none that was right before.
    """
    for key, size in _sizes(job, words, first):
        corrected = _corrected(job, {key: size}) or _corrected(job, {**dict.fromkeys(first, 1), key: size})
        if corrected and _facts(corrected) < _facts(job):
            yield key, size, corrected
    for key, value in (*_other_layers(job), *((key, True) for key in _flags_of_biases(job))):
        corrected = _corrected(job, {key: value})
        is_count = value is not True
        if corrected and _facts(corrected) < _facts(job) and not (is_count and _unread_layers(corrected)):
            yield key, value, corrected


def _sizes(job: Job, words: ConfigWords, first: Collection[str]) -> list[tuple[str, int]]:
    """The keys of axes that have another size in the checkpoint, with its most frequent size there."""
    found: dict[str, Counter[int]] = {}
    parameters: dict[Off, list[str]] = {}
    counts: Counter[Off] = Counter()
    for problem, offs in off_axes(job.plan, [problem for problem in job.plan.problems if problem.code == "BU102"]):
        for off in offs:
            parameters.setdefault(off, []).append(problem.parameter)
            counts[off] += 1
    for off, count in counts.items():
        keys = keys_of(off, parameters[off], words)
        for key in keys:
            stated = job.config.get(key) or (off.wanted if len(keys) == 1 else 0)
            if isinstance(stated, int) and stated and not stated * off.found % off.wanted:
                found.setdefault(key, Counter())[stated * off.found // off.wanted] += count
    ordered = sorted(found, key=lambda key: (key not in first, -found[key].total()))
    return [(key, found[key].most_common(1)[0][0]) for key in ordered[:MOST]]


def _corrected(job: Job, sizes: Mapping[str, object]) -> Job | None:
    try:
        return replanned(job, {**job.config, **sizes})
    except (BringupError, AxesError):
        return None  # no model has these sizes


def _other_layers(job: Job) -> Iterator[tuple[str, int]]:
    """The keys that may state the number of layers, with numbers that the checkpoint may have.

    The last layer lacks tensors, or it or a later one has unread tensors: then it is another kind of layer (a draft),
    or one that the config does not count. A number is not considered if a lower layer has no tensor: planning as many
    layers as one stray name suggests would take hours.
    """
    path, count = f"{job.graph.layer_path}.", len(job.graph.layers)
    last = f"{path}{count - 1}."
    if any(p.code == "BU101" and p.parameter.startswith(last) for p in job.plan.problems):
        there = {_layer(name, path) for name in job.plan.entries}
        numbers = [max(there, default=0) + 1]
    elif _unread_layers(job):
        there = set(_layers_of(job, job.plan.headers))
        most = max(there)
        numbers = [number for number in (most, most + 1) if there.issuperset(range(count, number))]
        if most >= count and most + 1 in numbers:
            yield from ((key, most + 1 - count) for key in job.config if key in DRAFTS)
    else:
        return
    keys = [key for key, value in job.config.items() if type(value) is int and value == count]
    yield from ((key, number) for key in keys for number in numbers if 0 < number != count)


def _flags_of_biases(job: Job) -> Iterator[str]:
    """The keys that may enable biases, if the checkpoint has unread ones."""
    if any(name.endswith(".bias") for name in job.plan.unread):
        yield from (key for key in dict.fromkeys((*BIASES, *job.config)) if "bias" in key and not job.config.get(key))


def _unread_layers(job: Job) -> bool:
    """Whether a tensor of the last layer, or of a later one, is unread. Scales of read matrices are ignored."""
    names = (name for name in job.plan.unread if not ((part := part_of(name)) and part[0] in job.plan.required))
    return any(number >= len(job.graph.layers) - 1 for number in _layers_of(job, names))


def _layers_of(job: Job, names: Iterable[str]) -> Iterator[int]:
    """The layer numbers of tensors of the checkpoint, -1 for tensors outside of layers."""
    prefix = job.plan.prefix  # which the names of a checkpoint may have or lack
    path = f"{job.graph.layer_path}.".removeprefix(prefix)
    return (_layer(name.removeprefix(prefix), path) for name in names)


def _layer(name: str, path: str) -> int:
    """The layer number of a name; -1 for a name outside of layers."""
    number = name[len(path) :].partition(".")[0] if name.startswith(path) else ""
    return int(number) if number.isdecimal() and len(number) < 10 else -1


def _facts(job: Job) -> set[str]:
    """The tensors, parameters and config keys with any error."""
    wrong = {name for p in job.plan.problems for name in p.sources or (p.parameter,)}
    return {*wrong, *job.plan.unread, *(f"config: {finding.parameter}" for finding in job.findings)}


def explained(finding: Diagnostic, key: str, value: object, others: int) -> Diagnostic:
    """The finding on a wrong config key, with the number of findings that follow from it."""
    if others < 1:
        return finding
    more = "another finding follows" if others == 1 else f"{others} other findings follow"
    if not finding.config_key and finding.code not in UNREAD:
        return replace(finding, help=f"{finding.help}; with `{key}` = {json.dumps(value)} it fits ({more} from it)")
    help = f"correct `{key}` to {json.dumps(value)} ({more} from it), or the checkpoint belongs to another config"
    return replace(finding, help=help)
