"""Tensors that are wanted and absent, and tensors that nothing reads: two sides of the same few mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.adapters.expr import Source
from bringup.adapters.plan import Plan
from bringup.adapters.problems import Problem
from bringup.adapters.rules import Rule
from bringup.compile.asked import Asked, parameters_of, sites_of
from bringup.compile.numbering import numbering, past_end, renumbered, surplus
from bringup.compile.parts import fused, scales_beside
from bringup.compile.shapes import stored
from bringup.compile.wrappers import foreign, lora, wrapped
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, grouped, roots

Group = dict[str, list[str]]  # roots of one pattern, each with the names below it

# How alike two names have to be to be one name misspelt, by what else speaks for it (difflib's ratio; by trial over
# every tensor of GPT-2 and Llama in tests/check/test_pairing.py).
ALIKE = {"same parts": 0.0, "same matrix": 0.45, "same vector": 0.7, "unknown": 0.75, "other shape": 0.93}


def missing_and_unread(plan: Plan) -> Iterator[Diagnostic]:
    """One diagnostic for each renamed, missing and unread group; whole sub-trees are told by their root."""
    asked: dict[str, list[Problem]] = {}
    for problem in plan.problems:
        for name in problem.sources if problem.code in ("BU101", "BU109") else ():
            asked.setdefault(name, []).append(problem)
    told = {name for p in plan.problems if p.code == "BU108" for name in scales_beside(plan, p.sources)}
    unread = [name for name in plan.unread if name not in told]
    for look in (lora, wrapped, fused, foreign):
        for cause in look(plan, asked, unread):
            yield cause.finding
            asked = {name: problems for name, problems in asked.items() if name not in cause.explains}
            unread = [name for name in unread if name not in cause.explains]
    if not (asked or unread):
        return
    wanted, read = [*plan.wanted, *plan.dropped], plan.headers.keys() - plan.dropped.keys()
    for whole in (True, False):  # sub-trees first; then, beside one another, single tensors of what is left
        missing = _by_pattern(roots(asked, wanted) if whole else {name: [name] for name in asked})
        unread_too = _by_pattern(roots(unread, read) if whole else {name: [name] for name in unread})
        for ours, theirs in _pairs(plan, asked, missing, unread_too, siblings=not whole):
            yield _renamed(plan, asked, ours, theirs)
            paired = {*_flat(ours), *_flat(theirs)}
            asked = {name: problems for name, problems in asked.items() if name not in paired}
            unread = [name for name in unread if name not in paired]
    for names in _by_pattern(roots(asked, wanted), plan).values():
        yield _missing(plan, asked, names)
    for names in _by_pattern(roots(unread, read)).values():
        yield _unread(plan, names)


def _by_pattern(found: dict[str, list[str]], plan: Plan | None = None) -> dict[str, dict[str, list[str]]]:
    """Roots that differ only in layer numbers, together: pattern → {root: names below it}.

    With a plan, so are the numbers that follow the last one that its checkpoint has.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for root, names in found.items():
        pattern = _pattern(root.rpartition(".")[0] + ".+" if plan and past_end(plan, root) else root)
        groups.setdefault(pattern, {})[root] = names
    return groups


def _pattern(root: str) -> str:
    """The root without its numbers, except a last one: layer 12 is one thing, and so is expert 3 of every layer."""
    head, _, last = root.rpartition(".")
    return f"{digits(head + '.')[0]}{last}" if head else digits(root)[0]


def _pairs(
    plan: Plan, asked: Asked, missing: dict[str, Group], unread: dict[str, Group], *, siblings: bool
) -> Iterator[tuple[Group, Group]]:
    """Missing and unread groups that are one thing under two names, the most alike first."""
    if not (missing and unread):
        return
    from difflib import SequenceMatcher

    found: list[tuple[float, str, str]] = []
    for other, theirs in unread.items():
        matcher = SequenceMatcher(None, b=other, autojunk=False)
        for pattern, names in missing.items():
            ours = _same_numbers(names, theirs)
            if not ours or (siblings and not _beside(pattern, other)):
                continue
            needed = ALIKE[_evidence(plan, asked, ours, theirs)]
            matcher.set_seq1(pattern)
            if matcher.real_quick_ratio() >= needed and (ratio := matcher.ratio()) >= needed:
                found.append((ratio - needed, pattern, other))
    for _, pattern, other in sorted(found, key=lambda pair: -pair[0]):
        ours = _same_numbers(missing[pattern], unread.get(other, {}))
        if ours:
            yield ours, unread.pop(other)
            missing[pattern] = {root: names for root, names in missing[pattern].items() if root not in ours}


def _beside(one: str, other: str) -> bool:
    """Whether two tensors hang below the same module, or modules that stand beside one another."""
    upper, lower = one.split(".")[:-2], other.split(".")[:-2]
    return upper == lower != []


def _same_numbers(missing: Group, unread: Group) -> Group:
    """The missing roots in the layers that the unread ones are in; nothing when those have other layers or sizes."""
    ours = {_numbers(root): root for root in missing}
    theirs = {_numbers(root): root for root in unread}
    if any(n not in ours or len(missing[ours[n]]) != len(unread[root]) for n, root in theirs.items()):
        return {}
    return {ours[n]: missing[ours[n]] for n in theirs}


def _numbers(root: str) -> tuple[int, ...]:
    """The numbers that `_pattern` takes out."""
    return digits(root.rpartition(".")[0] + ".")[1]


def _evidence(plan: Plan, asked: Asked, ours: Group, theirs: Group) -> str:
    """What shapes say of two groups being the same tensors: a key of ALIKE."""
    sizes = {_below(root, name): _sizes(plan, asked[name][0]) for root, names in ours.items() for name in names}
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
    """The sizes of a tensor that is absent, where the rule is that tensor and nothing else."""
    simple = isinstance(problem.rule, Rule) and isinstance(problem.rule.made, Source)
    return sorted(plan.signature[problem.parameter].storage[0]) if simple else None


def _flat(names: Group) -> tuple[str, ...]:
    return tuple(name for group in names.values() for name in group)


def _missing(plan: Plan, asked: Asked, names: Group) -> Diagnostic:
    untied = asked[_flat(names)[0]][0]
    if untied.code == "BU109":
        return Diagnostic(
            code="BU109",
            message=f"`{untied.parameter}` is missing: {untied.message}",
            help=untied.help,
            parameter=untied.parameter,
            sources=_flat(names),
            **sites_of(plan, asked, _flat(names)),
        )
    return Diagnostic(
        code="BU101",
        message=_absent(names),
        help=numbering(plan, names)
        or "is the checkpoint complete, and does its config belong to it? a name that never existed is the rule's",
        parameter=parameters_of(plan, asked, _flat(names)),
        sources=_flat(names),
        **sites_of(plan, asked, _flat(names)),
    )


def _absent(names: Group) -> str:
    told, count = ", ".join(grouped(names)), len(_flat(names))
    if count == len(names):
        return f"the checkpoint has no tensor `{told}`"
    return f"the checkpoint has nothing below `{told}` ({count} tensors)"


def _unread(plan: Plan, names: Group) -> Diagnostic:
    told, count = ", ".join(grouped(names)), len(_flat(names))
    first = plan.headers[_flat(names)[0]]
    pattern = _drop_pattern(names).removeprefix(plan.prefix)
    below = "" if count == len(names) else f" ({count} tensors below it)"
    return Diagnostic(
        code="BU105",
        message=f"nothing reads the tensor `{told}`{below or f' {list(first.shape)}'}",
        help=surplus(plan, names) + f'if it is not a weight, say so in the adapter: drop("{pattern}", why="…")',
        sources=_flat(names),
        **stored(plan, _flat(names)),
    )


def _drop_pattern(names: Group) -> str:
    """What to write into a drop: layer numbers and what is below a sub-tree's root as variables."""
    root, below = next(iter(names.items()))
    if len(names) > 1:
        pattern, numbers = digits(root)
        root = pattern.format(*(f"{{{letter}}}" for letter in "LMNOP"[: len(numbers)]))
    return root if len(below) == 1 else f"{root}.{{x:**}}"


def _renamed(plan: Plan, asked: Asked, wanted: Group, found: Group) -> Diagnostic:
    other = ", ".join(grouped(_inner(wanted, found) if wanted.keys() == found.keys() else found))
    return Diagnostic(
        code="BU101",
        message=_absent(wanted),
        help=renumbered(plan, next(iter(wanted)), next(iter(found)))
        or f"did you mean `{other}`? nothing reads it; correct the name in the rule",
        parameter=parameters_of(plan, asked, _flat(wanted)),
        sources=(*_flat(wanted), *_flat(found)),
        **sites_of(plan, asked, _flat(wanted)) | stored(plan, _flat(found)),
    )


def _inner(wanted: Group, found: Group) -> list[str]:
    """Of roots that have one name, what shows that they are not one: the unread twin of the first missing tensor."""
    from difflib import get_close_matches

    return [get_close_matches(names[0], found[root], n=1, cutoff=0)[0] for root, names in wanted.items()]
