"""Proposes repairs of a finding: other names for its tensors, or another order of its axes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bringup.adapters.algebra.expr import Source
from bringup.adapters.algebra.pattern import fill, match
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import part_of
from bringup.adapters.planning.rules import Rule
from bringup.adapters.schemes.part_source import PartSource
from bringup.compile.fix.pyfile import PyFile
from bringup.compile.fix.respell import edits, respelt
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic, Fix
from bringup.graphs.core.axes import parse
from bringup.nearest import slips

MOST_NAMES = 12  # candidate names for one source: if there are more, none is certain
TYPO = 2  # edits of a letter that still suggest the same name


@dataclass(frozen=True)
class Proposal:
    """Edits that belong together; `slips` is the edit distance of the new name."""

    fixes: tuple[Fix, ...]
    slips: int = 0


def proposals(job: Job, file: PyFile, finding: Diagnostic) -> list[list[Proposal]]:
    """For each mistake in a finding, its possible repairs."""
    mistakes = [p for p in job.plan.problems if set(p.sources) & set(finding.sources)]
    if finding.code == "BU101":
        return list(_renames(job, file, finding, [p for p in mistakes if p.code in ("BU101", "BU109")]))
    if finding.code == "BU102":
        return list(_transpositions(job, file, [p for p in mistakes if p.code == "BU102"]))
    return []


def _names(job: Job) -> Names:
    return job.adapter.names(job.plan.headers)


@dataclass(frozen=True)
class _Leaf:
    """A source of one parameter: its name there, the rule's line and variables.

    `tensors` are the names behind it: its own, or those of the parts of a quantised matrix.
    """

    source: Source
    name: str
    line: int
    bindings: Mapping[str, str]
    tensors: tuple[str, ...]

    def respelt(self, pattern: str) -> str:
        """Its name if the source were spelled like this."""
        return fill(pattern, {**(match(self.source.name, self.name) or {}), **self.bindings})


def _leaves(problem: Problem) -> Iterator[_Leaf]:
    assert isinstance(problem.rule, Rule), "a parameter's problem"
    rule, bindings = problem.rule, match(problem.rule.pattern, problem.parameter) or {}
    for expr in rule.every:
        found: dict[tuple[str, str], tuple[Source, list[str]]] = {}
        for source, name in expr.leaves(bindings):
            of, plain = (source.of, _plain(name)) if isinstance(source, PartSource) else (source, name)
            found.setdefault((of.name, plain), (of, []))[1].append(name)
        for (_, plain), (source, tensors) in found.items():
            yield _Leaf(source, plain, rule.site.line, bindings, tuple(tensors))


def _plain(name: str) -> str:
    """The plain tensor that a quantiser's tensor belongs to; otherwise the name itself."""
    return (part_of(name) or (name,))[0]


def _renames(job: Job, file: PyFile, finding: Diagnostic, mistakes: list[Problem]) -> Iterator[list[Proposal]]:
    """For each missing source, other spellings that match unread tensors.

    Unless the finding pairs the two, only small edit distances count.
    """
    names, paired = _names(job), bool(set(finding.sources) & job.plan.headers.keys())
    leaves_by_name: dict[str, list[_Leaf]] = {}
    for problem in mistakes:
        absent = {name for name in problem.sources if name not in job.plan.headers}
        for leaf in _leaves(problem) if isinstance(problem.rule, Rule) else ():
            behind = [name for tensor in leaf.tensors for name in names.behind(tensor)]
            if all(isinstance(name, str) for name in behind) and absent.intersection(map(str, behind)):
                leaves_by_name.setdefault(leaf.source.name, []).append(leaf)
    unread = set(job.plan.unread)
    free = {_plain(known) for known, info in names.items() if info.name in unread}  # a part is never a new name
    for pattern, leaves in leaves_by_name.items():
        calls = file.sources(pattern, leaves[0].line)
        spellings = dict.fromkeys(respelt(pattern, leaves[0].bindings, other) for other in sorted(free))
        found: list[Proposal] = []
        for spelling in filter(None, spellings) if len(calls) == 1 else ():
            apart = _slips(pattern, spelling)
            edited = edits(file, calls[0].args[0], pattern, spelling) if paired or apart <= TYPO else None
            if edited and all(leaf.respelt(spelling) in free for leaf in leaves):
                found.append(Proposal(tuple(edited), apart))
        yield found if len(found) <= MOST_NAMES else []


def _slips(old: str, new: str) -> int:
    found = slips(old, new, TYPO)
    return TYPO + 1 if found is None else found


def _transpositions(job: Job, file: PyFile, mistakes: list[Problem]) -> Iterator[list[Proposal]]:
    """The transposed axes of each source: where it states them, else in the adapter's defaults."""
    names, seen = _names(job), set[tuple[str, int]]()
    for problem in mistakes:
        wanted = [axis.size for axis in problem.axes]
        if not isinstance(problem.rule, Rule) or len(wanted) != 2 or problem.actual != str(wanted[::-1]):
            continue
        for leaf in _leaves(problem):
            place = leaf.source.name, leaf.line
            if names.behind(leaf.tensors[0]) == [job.plan.headers.get(problem.sources[0])] and place not in seen:
                seen.add(place)
                yield list(_transposed(file, problem, leaf))


def _transposed(file: PyFile, problem: Problem, leaf: _Leaf) -> Iterator[Proposal]:
    calls = file.sources(leaf.source.name, leaf.line)
    stated, transposed = (
        " ".join(axis.name or str(axis) for axis in axes) for axes in (problem.axes, problem.axes[::-1])
    )
    if len(calls) == 1:
        given = [*calls[0].args[1:2], *(word.value for word in calls[0].keywords if word.arg == "axes")]
        if leaf.source.axes and given:
            transposed = " ".join(str(axis) for axis in parse(leaf.source.axes)[::-1])
            yield from _rewritten(file, given[0], leaf.source.axes, transposed)
        elif not leaf.source.axes and not given:
            yield Proposal((file.fix(file.span(calls[0].args[0])[1], "", f', "{transposed}"'),))
    defaults = [node for node in file.strings("Adapter", "defaults") if node.value == stated]
    if len(defaults) == 1 and not leaf.source.axes:
        yield from _rewritten(file, defaults[0], stated, transposed)


def _rewritten(file: PyFile, node: ast.expr, old: str, new: str) -> Iterator[Proposal]:
    edited = edits(file, node, old, new)
    if edited:
        yield Proposal(tuple(edited))
