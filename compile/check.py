"""The proof: does this checkpoint fit this graph? Every finding at once, one mistake one diagnostic."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from bringup.adapters.coverage import read_bits, total_bits
from bringup.adapters.plan import Plan, Problem
from bringup.compile.missing import missing_and_unread
from bringup.diagnostics import Diagnostic, Report, Severity, Sites
from bringup.graphs.axes import Axes, shape_of, show
from bringup.grouping import grouped


def check(plan: Plan, model: str = "") -> Report:
    """Checks a plan both ways: every parameter is made whole, every tensor is read whole or dropped with a reason.

    No tensor is read; torch is not imported, and numpy only where readers of one tensor overlap.
    """
    report = Report(model)
    problems = [problem for problem in plan.problems if problem.code != "BU101"]
    report.findings += missing_and_unread(plan)
    for facts in _alike([p for p in problems if p.code == "BU102"], _shape_mistake).values():
        report.findings.append(_shape(plan, facts))
    others = [p for p in problems if p.code != "BU102"]
    by_fact = _alike(others, lambda p: (p.code, p.rule and p.rule.site, p.expected, p.actual, p.message))
    report.findings += (_other(plan, facts) for facts in by_fact.values())
    bits = read_bits(plan)
    report.findings += _partly_read(plan, bits)
    report.findings += _odd_squares(plan)
    report.counts = {
        "parameters": len(plan.signature),
        "tensors": len(plan.headers),
        "consumed": len(bits),
        "dropped": len(plan.dropped),
    }
    return report


def _alike(problems: Iterable[Problem], key: Callable[[Problem], Hashable]) -> dict[Hashable, list[Problem]]:
    groups: dict[Hashable, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(key(problem), []).append(problem)
    return groups


def _names(problems: list[Problem]) -> tuple[str, tuple[str, ...]]:
    """The parameters in few words, and the tensors concerned."""
    sources = dict.fromkeys(name for problem in problems for name in problem.sources)
    return ", ".join(grouped(dict.fromkeys(p.parameter for p in problems if p.parameter))), tuple(sources)


def _shape_mistake(problem: Problem) -> Hashable:
    """What makes two wrong shapes one mistake: the same axis with the same two sizes; else the same rule and shapes."""
    axis = _differing(problem.axes, problem.actual)
    return axis or (problem.rule and problem.rule.site, show(problem.axes), shape_of(problem.axes), problem.actual)


def _differing(axes: Axes, actual: str) -> tuple[str, int, int] | None:
    shape = [int(size) for size in actual.strip("[]").split(",") if size.strip()]
    if len(shape) != len(axes):
        return None
    off = [(str(axis), axis.size, size) for axis, size in zip(axes, shape, strict=True) if axis.size != size]
    return off[0] if len(off) == 1 else None


def _shape(plan: Plan, facts: list[Problem]) -> Diagnostic:
    first = facts[0]
    parameter, sources = _names(facts)
    wanted, actual = list(shape_of(first.axes)), first.actual
    axis = _differing(first.axes, actual)
    told = ", ".join(grouped(sources))
    if axis:
        message = f"axis `{axis[0]}` of `{told}` is {axis[2]} in the checkpoint, {axis[1]} in the graph"
        help = f"the config gives `{axis[0]}` its size; correct it, or the checkpoint belongs to another config"
        if axis[0] == "vocab" and axis[2] > axis[1]:
            help = f"the vocabulary is padded: set vocab_size to {axis[2]}, or cut the rows in the adapter: " + (
                f'S(…).split("vocab", {axis[1]}, {axis[2] - axis[1]})[0]'
            )
    else:
        message = f"`{told}` is {actual}, the rule says {wanted}, axes `{show(first.axes)}`"
        help = "the config or the rule's axes are not those of this checkpoint"
        if actual == str(wanted[::-1]):
            names = [axis.name or str(axis) for axis in first.axes]
            help = f'it is stored the other way round: write S(…, "{" ".join(names[::-1])}"); the transpose follows'
    return Diagnostic(
        code="BU102",
        message=message,
        help=help,
        parameter=parameter,
        sources=sources,
        expected=str(wanted),
        actual=actual,
        **_sites(plan, first),
    )


_WORDS: dict[str, tuple[str, str]] = {
    "BU103": ("no rule of the adapter makes `{parameter}`", "add a rule for it to the adapter"),
    "BU106": (
        "`{parameter}`: {message}",
        "say how the tensor is stored, in the order of its dimensions: S(name, \"in out\")",
    ),
    "BU108": (
        "`{parameter}` is declared {expected}, the checkpoint stores {actual}",
        "floats convert into one another; anything else needs a value node in the rule, such as dequant",
    ),
    "BU109": ("`{parameter}` is missing: {message}", "{help}"),
    "BU110": ("`{parameter}`: {message}", "make the patterns exclude one another"),
    "BU111": ("{message}", "correct the pattern or its `expect`: a drop that meets too much hides weights"),
}


def _other(plan: Plan, facts: list[Problem]) -> Diagnostic:
    first = facts[0]
    parameter, sources = _names(facts)
    message, help = _WORDS[first.code]
    words = {
        "parameter": parameter,
        "message": first.message,
        "help": first.help,
        "expected": first.expected,
        "actual": first.actual,
    }
    return Diagnostic(
        code=first.code,
        message=message.format(**words),
        help=help.format(**words),
        parameter=parameter,
        sources=sources,
        expected=first.expected,
        actual=first.actual,
        **_sites(plan, first),
    )


def _sites(plan: Plan, problem: Problem) -> Sites:
    declared = plan.signature.get(problem.parameter)
    info = plan.headers.get(problem.sources[0]) if problem.sources else None
    return Sites(
        where=problem.rule and problem.rule.site,
        declared=declared and declared.site,
        file=str(info.file) if info and info.file else "",
    )


def _partly_read(plan: Plan, bits: dict[str, int]) -> Iterator[Diagnostic]:
    """Tensors of which some elements reach no parameter."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name, read in bits.items():
        total = total_bits(plan.headers[name])
        if read < total:
            parts.setdefault((read, total), []).append(name)
    for (read, total), names in parts.items():
        yield Diagnostic(
            code="BU113",
            message=f"only {read / total:.1%} of `{', '.join(grouped(names))}` is read by any rule",
            help="cover the rest with a rule, or say that it is left out on purpose with a drop",
            sources=tuple(names),
        )


def _odd_squares(plan: Plan) -> Iterator[Diagnostic]:
    """Square matrices read the other way round than all their rectangular neighbours: the shape cannot tell."""
    turned: dict[str, set[bool]] = {}
    for name, entry in plan.entries.items():
        shape = entry.region.shape
        if len(shape) == 2 and shape[0] != shape[1]:
            turned.setdefault(_layer(name), set()).add(_is_turned(plan, name))
    odd: dict[object, list[str]] = {}
    for name, entry in plan.entries.items():
        shape, siblings = entry.region.shape, turned.get(_layer(name), set())
        if len(shape) == 2 and shape[0] == shape[1] and len(siblings) == 1 and _is_turned(plan, name) not in siblings:
            odd.setdefault(entry.rule.site, []).append(name)
    for names in odd.values():
        first = plan.entries[names[0]]
        yield Diagnostic(
            code="BU107",
            severity=Severity.WARNING,
            message=f"`{', '.join(grouped(names))}` is square and read as "
            f"{'transposed' if _is_turned(plan, names[0]) else 'it lies'}, unlike every rectangular matrix beside it",
            help="a shape cannot show a forgotten transpose; run `bringup verify` to settle it",
            parameter=names[0],
            where=first.rule.site,
            declared=first.declared.site,
        )


def _layer(name: str) -> str:
    """The sub-tree of a layer, which its matrices share: up to the first number."""
    head, _, rest = name.partition(".")
    while rest and not head.rpartition(".")[2].isdigit():
        step, _, rest = rest.partition(".")
        head = f"{head}.{step}"
    return head if rest else ""


def _is_turned(plan: Plan, name: str) -> bool:
    return any(loops and loops[-1][1] != 1 for loops in (nest.loops for nest in plan.entries[name].region.nests))
