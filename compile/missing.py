"""Tensors that are wanted and absent, and tensors that nothing reads: two sides of the same few mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.adapters.plan import Plan, Problem
from bringup.diagnostics import Diagnostic, Sites
from bringup.grouping import digits, grouped, roots


def missing_and_unread(plan: Plan) -> Iterator[Diagnostic]:
    """One diagnostic for each renamed, missing and unread group; whole sub-trees are told by their root."""
    asked = {name: problem for problem in plan.problems if problem.code == "BU101" for name in problem.sources}
    unread = [name for name in plan.headers if name not in plan.wanted and name not in plan.dropped]
    prefix = _common_prefix(list(asked), set(unread))
    if prefix:
        yield _prefixed(plan, asked, prefix)
        unread = [name for name in unread if not name.startswith(prefix)]
        asked = {}
    missing_roots = _by_pattern(roots(asked, plan.wanted))
    unread_roots = _by_pattern(roots(unread, plan.headers.keys() - plan.dropped.keys()))
    for pattern, names in missing_roots.items():
        partner = _partner(plan, asked, pattern, names, unread_roots)
        if partner:
            yield _renamed(plan, asked, names, unread_roots.pop(partner))
        else:
            yield _missing(plan, asked, names)
    for names in unread_roots.values():
        yield _unread(plan, names)


def _by_pattern(found: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Roots that differ only in layer numbers, together: pattern → {root: names below it}."""
    groups: dict[str, dict[str, list[str]]] = {}
    for root, names in found.items():
        groups.setdefault(_pattern(root), {})[root] = names
    return groups


def _pattern(root: str) -> str:
    """The root without its numbers, except a last one: layer 12 is one thing, and so is expert 3 of every layer."""
    head, _, last = root.rpartition(".")
    return f"{digits(head + '.')[0]}{last}" if head else digits(root)[0]


def _common_prefix(missing: list[str], unread: set[str]) -> str:
    """A prefix that turns every missing name into an unread one, or ""."""
    if len(missing) < 2:
        return ""
    ends = "." + missing[0]
    for name in sorted(unread):
        prefix = name[: -len(missing[0])] if name.endswith(ends) else ""
        if prefix and all(prefix + wanted in unread for wanted in missing):
            return prefix
    return ""


def _partner(
    plan: Plan,
    asked: dict[str, Problem],
    pattern: str,
    names: dict[str, list[str]],
    unread: dict[str, dict[str, list[str]]],
) -> str | None:
    """The unread group that most looks like a missing one: as many tensors, a like name, like sizes."""
    from difflib import SequenceMatcher

    def likeness(candidate: str) -> float:
        theirs = unread[candidate]
        ours = [name for group in names.values() for name in group]
        other = [name for group in theirs.values() for name in group]
        if len(ours) != len(other):
            return 0.0
        alike = SequenceMatcher(None, pattern, candidate).ratio()
        return alike + (0.2 if _sizes(plan, asked[ours[0]]) == sorted(plan.headers[other[0]].shape) else -0.2)

    best = max(unread, key=likeness, default=None)
    return best if best is not None and likeness(best) > 0.75 else None


def _sizes(plan: Plan, problem: Problem) -> list[int]:
    return sorted(plan.signature[problem.parameter].storage[0])


def _parameters(plan: Plan, asked: dict[str, Problem], names: dict[str, list[str]]) -> str:
    made = dict.fromkeys(asked[name].parameter for group in names.values() for name in group)
    return ", ".join(grouped(roots(made, plan.signature)))


def _sites(plan: Plan, asked: dict[str, Problem], names: dict[str, list[str]]) -> Sites:
    problem = asked[next(iter(names.values()))[0]]
    return Sites(where=problem.rule and problem.rule.site, declared=plan.signature[problem.parameter].site)


def _flat(names: dict[str, list[str]]) -> tuple[str, ...]:
    return tuple(name for group in names.values() for name in group)


def _missing(plan: Plan, asked: dict[str, Problem], names: dict[str, list[str]]) -> Diagnostic:
    told, count = ", ".join(grouped(names)), len(_flat(names))
    message = f"the checkpoint has no tensor `{told}`" if count == len(names) else (
        f"the checkpoint has nothing below `{told}` ({count} tensors)"
    )
    return Diagnostic(
        code="BU101",
        message=message,
        help=_numbering(plan, next(iter(names)))
        or "is the checkpoint complete, and does its config belong to it? a name that never existed is the rule's",
        parameter=_parameters(plan, asked, names),
        sources=_flat(names),
        **_sites(plan, asked, names),
    )


def _numbering(plan: Plan, root: str) -> str:
    """What there is beside a missing number: `.0 to .11 are there`."""
    parent, _, last = root.rpartition(".")
    if not last.isdigit():
        return ""
    steps = {n[len(parent) + 1 :].partition(".")[0] for n in plan.headers if n.startswith(parent + ".")}
    if not steps:  # the checkpoint's names may carry the prefix that rules leave out
        steps = {n.partition(f".{parent}.")[2].partition(".")[0] for n in plan.headers if f".{parent}." in n}
    there = sorted(int(step) for step in steps if step.isdigit())
    if not there:
        return ""
    if int(last) > there[-1]:
        return f"the checkpoint ends at {parent}.{there[-1]}, the config asks for {last}: one of the two is wrong"
    return f"there is a hole in the numbering of `{parent}`: {grouped(f'{parent}.{n}' for n in there)[0]} are there"


def _unread(plan: Plan, names: dict[str, list[str]]) -> Diagnostic:
    told, count = ", ".join(grouped(names)), len(_flat(names))
    shape = list(plan.headers[_flat(names)[0]].shape)
    below = "" if count == len(names) else f" ({count} tensors below it)"
    return Diagnostic(
        code="BU105",
        message=f"nothing reads the tensor `{told}`{below or f' {shape}'}",
        help=f'if it is not a weight, say so in the adapter: drop("{next(iter(names))}", why="…")',
        sources=_flat(names),
    )


def _renamed(
    plan: Plan, asked: dict[str, Problem], wanted: dict[str, list[str]], found: dict[str, list[str]]
) -> Diagnostic:
    told, other = ", ".join(grouped(wanted)), ", ".join(grouped(found))
    return Diagnostic(
        code="BU101",
        message=f"the checkpoint has no tensor `{told}`",
        help=f"did you mean `{other}`? nothing reads it; correct the name in the rule",
        parameter=_parameters(plan, asked, wanted),
        sources=(*_flat(wanted), *_flat(found)),
        **_sites(plan, asked, wanted),
    )


def _prefixed(plan: Plan, asked: dict[str, Problem], prefix: str) -> Diagnostic:
    problem = next(iter(asked.values()))
    return Diagnostic(
        code="BU101",
        message=f"every name of the checkpoint carries the prefix `{prefix}` ({len(asked)} tensors are missing for it)",
        help=f'say so in the adapter: Adapter(…, prefix="{prefix}")',
        parameter=", ".join(roots(dict.fromkeys(p.parameter for p in asked.values()), plan.signature)),
        sources=tuple(prefix + name for name in asked),
        where=problem.rule and problem.rule.site,
    )
