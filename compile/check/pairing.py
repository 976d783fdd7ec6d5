"""Pairs missing tensors with unread ones that have another name, and lists pairs that shapes cannot distinguish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bringup.adapters.algebra.expr import Source
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.rules import Rule
from bringup.compile.check.facts.other_layers import exception, in_other_layers, roots_of
from bringup.compile.check.facts.requests import Readers, parameters_of, sites_of
from bringup.compile.check.facts.shapes import stored
from bringup.compile.check.numbering import renumbered
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, grouped
from bringup.nearest import MOST, slips

Group = dict[str, list[str]]  # roots of one pattern, each with the names below it

# The least similarity of two names that may be one misspelt name, by further evidence (difflib's ratio; determined by
# trial with every tensor of GPT-2 and Llama in tests/check/test_pairing.py).
ALIKE = {"same parts": 0.0, "same matrix": 0.45, "same vector": 0.7, "unknown": 0.75, "other shape": 0.93}
EQUAL = ("same parts", "same matrix", "same vector")


class Edge(NamedTuple):
    """A missing and an unread pattern: `excess` of similarity over the threshold, `slips` is their edit distance."""

    missing: str
    unread: str
    excess: float
    slips: int
    equal: bool  # in shape and parent: such edges compete


class Pair(NamedTuple):
    """Missing tensors and the unread ones that they may be; `rivals` are other missing ones that these may be too."""

    missing: Group
    candidates: list[Group]
    rivals: list[Group]

    def of_parts(self, parts: Mapping[str, Sequence[str]]) -> Pair:
        """The same with the names of parts, by plain tensor, in place of quantised matrices."""
        groups = (self.missing, *self.candidates, *self.rivals)
        if not any(name in parts for group in groups for name in flat(group)):
            return self
        missing, *others = (_of_parts(group, parts) for group in groups)
        if len(self.candidates) == 1 and self.missing.keys() == self.candidates[0].keys():
            others[0] = _of_parts({name: [name] for name in flat(self.candidates[0])}, parts)
        return Pair(missing, others[: len(self.candidates)], others[len(self.candidates) :])


def pairs(
    plan: Plan, readers: Readers, missing: dict[str, Group], unread: dict[str, Group], *, siblings: bool
) -> Iterator[Pair]:
    """Pairs with small edit distances first, the smallest before others; then the most similar names.

    If several tensors of one shape have the same parent, only a small edit distance decides between them: otherwise all
    of them are candidates.
    """
    edges = list(_edges(plan, readers, missing, unread, siblings=siblings)) if missing and unread else []
    accepted = sorted((edge for edge in edges if edge.excess >= 0), key=lambda edge: -edge.excess)
    for edge in sorted(accepted, key=lambda edge: edge.slips):
        alike = (e for e in edges if e.slips == edge.slips and (e.missing == edge.missing) != (e.unread == edge.unread))
        if edge.slips <= MOST and not any(_fits(e, missing, unread) for e in alike):
            yield from _taken([edge], missing, unread)
    for edge in accepted:
        rivals = [e for e in _connected(edge, edges) if _fits(e, missing, unread)] if edge.equal else []
        numbered = edge.missing.rpartition(".")[2].isdigit() and edge.unread.rpartition(".")[2].isdigit()
        yield from _taken([edge] if numbered or not rivals else rivals, missing, unread)


def _edges(
    plan: Plan, readers: Readers, missing: dict[str, Group], unread: dict[str, Group], *, siblings: bool
) -> Iterator[Edge]:
    from difflib import SequenceMatcher

    for other, theirs in unread.items():
        matcher = SequenceMatcher(None, b=other, autojunk=False)
        for pattern, names in missing.items():
            ours, are_siblings = _same_numbers(names, theirs), _are_siblings(pattern, other)
            if not ours or (siblings and not are_siblings):
                continue
            evidence = _evidence(plan, readers, ours, theirs)
            needed, equal = ALIKE[evidence], evidence in EQUAL and are_siblings
            matcher.set_seq1(pattern)
            ratio = matcher.ratio() if equal or matcher.real_quick_ratio() >= needed else -1.0
            if equal or ratio >= needed:
                found = slips(pattern, other, MOST)
                yield Edge(pattern, other, ratio - needed, MOST + 1 if found is None else found, equal)


def _fits(edge: Edge, missing: dict[str, Group], unread: dict[str, Group]) -> bool:
    """Whether both sides of an edge are still unpaired."""
    return bool(_same_numbers(missing[edge.missing], unread.get(edge.unread, {})))


def _connected(first: Edge, edges: list[Edge]) -> list[Edge]:
    """The edges between all patterns that `first` may be confused with, by equal shapes."""
    found, ends = [first], {first.missing, first.unread}
    rest = [edge for edge in edges if edge.equal and edge is not first]
    while near := [edge for edge in rest if edge.missing in ends or edge.unread in ends]:
        found += near
        ends.update(end for edge in near for end in edge[:2])
        rest = [edge for edge in rest if edge not in near]
    return found


def _taken(edges: list[Edge], missing: dict[str, Group], unread: dict[str, Group]) -> Iterator[Pair]:
    """One pair for each missing pattern of these edges; both sides are removed from the unpaired ones."""
    ours: dict[str, Group] = {}
    for edge in edges:
        if group := _same_numbers(missing[edge.missing], unread.get(edge.unread, {})):
            ours.setdefault(edge.missing, {}).update(group)
    if not ours:
        return
    candidates = {e.unread: unread[e.unread] for e in edges if e.unread in unread}
    for pattern, group in ours.items():
        own = [candidates[e.unread] for e in edges if e.missing == pattern and e.unread in candidates]
        yield Pair(group, own, [other for name, other in ours.items() if name != pattern])
    for pattern, group in ours.items():
        missing[pattern] = {root: names for root, names in missing[pattern].items() if root not in group}
    for name in candidates:
        del unread[name]


def _are_siblings(one: str, other: str) -> bool:
    """Whether two tensors are in the same module, or in sibling modules."""
    upper, lower = one.split(".")[:-2], other.split(".")[:-2]
    return upper == lower != []


def _same_numbers(missing: Group, unread: Group) -> Group:
    """The missing roots in the layers of the unread ones; {} if those have other layers or sizes."""
    ours = {_numbers(root): root for root in missing}
    theirs = {_numbers(root): root for root in unread}
    if any(n not in ours or len(missing[ours[n]]) != len(unread[root]) for n, root in theirs.items()):
        return {}
    return {ours[n]: missing[ours[n]] for n in theirs}


def _numbers(root: str) -> tuple[int, ...]:
    """The numbers that `_pattern` removes."""
    return digits(root.rpartition(".")[0] + ".")[1]


def _evidence(plan: Plan, readers: Readers, ours: Group, theirs: Group) -> str:
    """The evidence of shapes that two groups are the same tensors: a key of ALIKE."""
    sizes = {_below(root, name): _sizes(plan, readers[name][0]) for root, names in ours.items() for name in names}
    found = {_below(root, name): sorted(plan.headers[name].shape) for root, names in theirs.items() for name in names}
    if None in sizes.values():
        return "unknown"
    if len(sizes) > 1 and sizes == found:
        return "same parts"
    if sorted(filter(None, sizes.values())) != sorted(found.values()):
        return "other shape"
    return "same matrix" if len(sizes) > 1 or len(next(iter(found.values()))) > 1 else "same vector"


def _below(root: str, name: str) -> str:
    return name.removeprefix(root)


def _sizes(plan: Plan, problem: Problem) -> list[int] | None:
    """The shape of an absent tensor, if it is the complete rule; None otherwise."""
    simple = isinstance(problem.rule, Rule) and isinstance(problem.rule.own_expr, Source)
    return sorted(plan.signature[problem.parameter].storage[0]) if simple else None


def _of_parts(group: Group, parts: Mapping[str, Sequence[str]]) -> Group:
    """The roots with the names of parts below them; a single matrix's root is its module."""
    return {
        root.removesuffix(".weight") if root in parts else root: [
            part for name in names for part in parts.get(name, (name,))
        ]
        for root, names in group.items()
    }


def flat(names: Group) -> tuple[str, ...]:
    return tuple(name for group in names.values() for name in group)


def absent(names: Group) -> str:
    listing, count = ", ".join(grouped(names)), len(flat(names))
    if count == len(names):
        return f"the checkpoint has no tensor `{listing}`"
    return f"the checkpoint has nothing below `{listing}` ({count} tensors)"


def renamed(plan: Plan, readers: Readers, pair: Pair) -> Diagnostic:
    """The finding of a pair. An ambiguous one lists all candidates, and claims none of them."""
    wanted, found = pair.missing, pair.candidates[0]
    if len(pair.candidates) > 1 or pair.rivals:
        found_names, sources = flat({k: v for group in pair.candidates for k, v in group.items()}), flat(wanted)
        help = _undecided(pair)
    else:
        found_names, sources = flat(found), (*flat(wanted), *flat(found))
        help = renumbered(plan, next(iter(wanted)), next(iter(found))) or _renamed_to(plan, readers, wanted, found)
    return Diagnostic(
        code="BU101",
        message=absent(wanted),
        help=help,
        parameter=parameters_of(plan, readers, flat(wanted)),
        sources=sources,
        **sites_of(plan, readers, flat(wanted)) | stored(plan, found_names),
    )


def _undecided(pair: Pair) -> str:
    names = " or ".join(f"`{', '.join(grouped(group))}`" for group in pair.candidates)
    if pair.rivals:
        others = " and ".join(f"`{', '.join(grouped(group))}`" for group in pair.rivals)
        return (
            f"it may be {names}, which no rule reads, but {others} may be as well: equal shapes cannot tell them "
            "apart; check the code that wrote the checkpoint"
        )
    return (
        f"it may be {names}, which no rule reads: equal shapes cannot tell them apart; "
        "check the code that wrote the checkpoint"
    )


def _renamed_to(plan: Plan, readers: Readers, wanted: Group, found: Group) -> str:
    """The new name of the roots; if the roots have the same names, those of all tensors below them."""
    names = grouped(flat(found) if wanted.keys() == found.keys() else found)
    it, s = ("it", "") if len(names) == 1 else ("them", "s")
    unread = f"did you mean {', '.join(f'`{name}`' for name in names)}? no rule reads {it}"
    if others := in_other_layers(plan, flat(wanted)):
        there = roots_of(wanted, others)
        return f"{unread}, {exception(readers[flat(wanted)[0]][0], flat(wanted), there, 'S(…)')}"
    return f"{unread}; correct the name{s} in the rule"
