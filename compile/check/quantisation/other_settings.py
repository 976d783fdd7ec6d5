"""Quantised matrices that match other values of `quantization_config`: another method, other bits, another table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.quantization import part_of, parts_of
from bringup.compile.job import Job, replanned
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import AxesError
from bringup.shown import shown

WHOLE_NUMBERS = ("gptq", "awq")
BITS = (4, 8, 3, 2)
# Values of compressed-tensors for the weights of a group that tensors may contradict.
OF_GROUPS: Sequence[Mapping[str, object]] = (
    {"num_bits": 4}, {"num_bits": 8}, {"symmetric": False}, {"symmetric": True}, {"actorder": "group"},
    {"actorder": None},
)  # fmt: skip


class Fitting(NamedTuple):
    """Settings that fit the tensors better: the corrected keys, and the tensors that they explain.

    `words` are of `quantization_config`; `inmost` has the innermost of them, for messages.
    """

    words: Mapping[str, object]
    tensors: frozenset[str]
    inmost: Mapping[str, object]

    def __str__(self) -> str:
        return ", ".join(f"`{key}` = {shown(value)}" for key, value in self.inmost.items())


def fitting(job: Job, words: Mapping[str, object]) -> Fitting | None:
    """Other settings by which every part of a quantised matrix is read; None if the config's own do this, or none does.

    Plans the checkpoint again with each, unless only one matrix is wrong, which settings for all cannot cause.
    """
    others = [*_alternatives(words)]
    wrong = _astray(job.plan) if others else set[str]()
    if len(parts_of(wrong)) < 2:
        return None
    for changed, inmost in others:
        with suppress(BringupError, AxesError):
            raw = {**job.config, "quantization_config": {**words, **changed}}
            left = _astray(replanned(job, raw).plan)
            if not any(part_of(name) for name in left):
                return Fitting(changed, frozenset(wrong - left), inmost or changed)
    return None


def _astray(plan: Plan) -> set[str]:
    """The tensors that are unread, missing, or of a wrong shape or dtype."""
    return {*plan.unread, *(name for problem in plan.problems for name in problem.sources)}


def _alternatives(words: Mapping[str, object]) -> Iterator[tuple[Mapping[str, object], Mapping[str, object]]]:
    """Alternatives to the config's settings, and for those inside of groups the keys that change."""
    groups = words.get("config_groups")
    for inmost in OF_GROUPS if isinstance(groups, Mapping) else ():
        yield {"config_groups": _with_weights(cast("Mapping[str, object]", groups), inmost)}, inmost
    yield from ((changed, {}) for changed in _other_words(words))


def _with_weights(groups: Mapping[str, object], inmost: Mapping[str, object]) -> dict[str, object]:
    """compressed-tensors' groups with other settings of their weights."""
    found = dict[str, object](groups)
    for name, group in groups.items():
        if isinstance(group, Mapping):
            inner = cast("Mapping[str, object]", group)
            weights = inner.get("weights")
            if isinstance(weights, Mapping):
                found[name] = {**inner, "weights": {**cast("Mapping[str, object]", weights), **inmost}}
    return found


def _other_words(words: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    method = words.get("quant_method")
    if method == "bitsandbytes":
        in_four = words.get("load_in_4bit") is True
        for table in ("nf4", "fp4"):
            four = {} if in_four else {"load_in_4bit": True, "load_in_8bit": False}
            yield {**four, "bnb_4bit_quant_type": table}
        yield {"load_in_4bit": False, "load_in_8bit": True}
    if words.get("dynamic"):
        yield {"dynamic": {}}
    if method in WHOLE_NUMBERS:
        for bits in BITS if method == "gptq" else ():
            yield {"bits": bits}
        yield {"quant_method": WHOLE_NUMBERS[1 - WHOLE_NUMBERS.index(method)]}


def lacking(plan: Plan) -> dict[str, list[str]]:
    """For each part that no matrix of the checkpoint has: the missing tensors of matrices with other parts."""
    there = {_end(name) for name in plan.headers if part_of(name)}
    matrices = plan.headers.keys() | parts_of(plan.headers)
    found: dict[str, list[str]] = {}
    for problem in plan.problems:
        for name in problem.sources if problem.code == "BU101" else ():
            if (part := part_of(name)) and part[0] in matrices and _end(name) not in there:
                found.setdefault(_end(name), []).append(name)
    return {part: names for part, names in found.items() if len(names) > 1}


def transposed(plan: Plan) -> dict[str, list[str]]:
    """By part: the tensors of several matrices whose two sizes are swapped."""
    found: dict[str, list[str]] = {}
    for problem in plan.problems:
        names = problem.sources if problem.code == "BU102" and problem.axes else ()
        for name in names:
            if part_of(name) and plan.headers[name].shape == tuple(axis.size for axis in reversed(problem.axes)):
                found.setdefault(_end(name), []).append(name)
    return {part: names for part, names in found.items() if len(names) > 1}


def _end(name: str) -> str:
    """The last section of a part's name, with the dtype at its end, if any."""
    plain, _ = part_of(name) or ("", "")
    return name.removeprefix(plain.removesuffix("weight"))
