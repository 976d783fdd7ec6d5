"""Single facts that do not fit, before they are grouped into diagnostics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bringup.adapters.algebra.expr import At, Cat, Expr, Mv, Pad, Part, Source
from bringup.adapters.algebra.hooks import Hook
from bringup.adapters.algebra.pattern import Unbound, compile_pattern, spelled
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope, WrongDtype
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.rules import Drop, Rule, sources_of
from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.graphs.core.axes import Axes, AxesError, DtypeError, shape_of, show, sizes_of
from bringup.graphs.core.signature import Declared
from bringup.grouping import digits
from bringup.nearest import nearest
from bringup.spec import DTYPES, FLOATS, TensorInfo

Leaves = Sequence[tuple[Source, list[TensorInfo | str]]]  # each source, and its tensors; a str is an absent one


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fact that does not fit."""

    code: str
    parameter: str = ""
    rule: Rule | Drop | None = None
    sources: tuple[str, ...] = ()
    expected: str = ""
    actual: str = ""
    message: str = ""
    help: str = ""
    node: str = ""  # BU108: the node whose inputs the tensors are
    axes: Axes = ()  # BU102: the expected axes, in the order in which the tensor is stored


def unclaimed(
    declared: Declared, claims: list[tuple[Rule, dict[str, str]]], idle: Callable[[], Mapping[str, Rule]]
) -> Problem:
    """A parameter with no rule, or with several. `idle` returns names that patterns spell but no parameter has."""
    if not claims:
        unused = idle()
        close = nearest(digits(declared.name)[0], unused)
        rule = unused[close[0]] if close else None
        help = f"a rule computes `{close[0]}`, which is not a parameter: is that the one?" if close else ""
        return Problem(code="BU103", parameter=declared.name, rule=rule, message="no rule computes it", help=help)
    lines = " and ".join(f"`{rule.pattern}` ({rule.site})" for rule, _ in claims)
    return Problem(code="BU110", parameter=declared.name, rule=claims[0][0], message=f"two rules claim it: {lines}")


def unused(hook: Hook, adapter: Adapter, parameters: Iterable[str]) -> Problem:
    """A function before or after the rules whose results are not read: the name of a result is misspelt."""
    before = hook in adapter.before
    names = [source.name for rule in adapter.rules for source in sources_of(rule)] if before else parameters
    known = {spelt for name in names for spelt in (spelled(name) if before else [digits(name)[0]])}
    given = list(dict.fromkeys(hook.outputs))
    hints = (did_you_mean(spelt, known - set(spelled(pattern))) for pattern in given for spelt in spelled(pattern))
    if before and adapter.prefix and given[0].startswith(adapter.prefix):
        hints = iter([f"rules omit the prefix `{adapter.prefix}`: write `{given[0].removeprefix(adapter.prefix)}`"])
    why = "which no rule reads" if before else "and the graph has no such parameter"
    names = ", ".join(f"`{pattern}`" for pattern in given)
    message = f"a hook is not used: it computes {names}, {why}"
    pattern = given[0]
    rule = Rule(pattern, hook.output(pattern), hook.site) if hook.site else None
    return Problem(code="BU153", rule=rule, message=message, help=next(filter(None, hints), ""))


def shapes(declared: Declared, rule: Rule, misfits: Iterable[tuple[TensorInfo, Axes]]) -> list[Problem]:
    """Tensors whose shape differs from the declared one."""
    return [
        Problem(
            code="BU102",
            parameter=declared.name,
            rule=rule,
            sources=(info.name,),
            axes=wanted,
            actual=str(list(info.shape)),
        )
        for info, wanted in misfits
    ]


def present_misfits(leaves: Leaves, scope: Scope) -> list[tuple[TensorInfo, Axes]]:
    """The wrong shapes among the present tensors of a rule that cannot be evaluated because others are absent."""
    found: list[tuple[TensorInfo, Axes]] = []
    for leaf, behind in leaves:
        info = behind[0]
        if isinstance(info, str) or DTYPES[info.dtype].block:
            continue
        with suppress(AxesError):
            shape = info.shape_in(len(leaf.stored(scope, None)))
            axes = leaf.stored(scope, shape)
            if axes and shape_of(axes) != shape:
                found.append((info, axes))
    return found


def dtypes(declared: Declared, rule: Rule, region: Region, scope: Scope) -> list[Problem]:
    """Sources of a region whose dtype cannot be rounded to the declared one."""
    wanted = declared.dtype
    if declared.pack is None and region.word > 1:  # read in parts, as one wider type
        fits = region.dtype == wanted
        wrong = {} if fits else {nest.source: region.dtype for nest in region.nests}
    else:
        wrong = {n.source: n.view for n in region.nests if n.view != wanted and not {n.view, wanted} <= FLOATS}
    if not wrong:
        return []
    names = tuple(scope.sources[source].name for source in wrong)
    return [_dtype(declared, rule, names, next(iter(wrong.values())))]


def inputs(declared: Declared, rule: Rule, wrong: Iterable[WrongDtype]) -> list[Problem]:
    """Tensors of a dtype that a value node does not accept."""
    return [
        replace(
            _dtype(declared, rule, found.tensors, found.dtype), node=found.node, expected=" or ".join(found.accepted)
        )
        for found in wrong
    ]


def odd_ones(declared: Declared, rule: Rule, leaves: Leaves) -> list[Problem]:
    """Among the tensors of one source of a rule, those of another kind than the rest, such as an integer expert."""
    alike: dict[int, list[TensorInfo]] = {}
    for leaf, behind in leaves:
        alike.setdefault(id(leaf), []).extend(info for info in behind if isinstance(info, TensorInfo))
    kind = DTYPES[declared.dtype].kind
    odd = [
        info
        for infos in alike.values()
        if any(DTYPES[info.dtype].kind == kind for info in infos)
        for info in infos
        if DTYPES[info.dtype].kind != kind
    ]
    return [_dtype(declared, rule, tuple(info.name for info in odd), odd[0].dtype)] if odd else []


def _dtype(declared: Declared, rule: Rule, sources: tuple[str, ...], stored: str) -> Problem:
    return Problem(
        code="BU108", parameter=declared.name, rule=rule, sources=sources, expected=declared.dtype, actual=stored
    )


def unbound(rule: Rule, error: Unbound) -> BringupError:
    """A source's name with a variable that is not bound: nothing can be planned."""
    there = ", ".join(f"{{{name}}}" for name in compile_pattern(rule.pattern).groupindex) or "no variable"
    return fail("BU027", str(error), help=f"the target `{rule.pattern}` has {there}", where=rule.site)


def _misspelt(declared: Declared, texts: Iterable[str]) -> str:
    """A suggestion for an axis that the parameter does not have."""
    known = sizes_of(declared.axes)
    unknown = [word for text in texts for word in re.findall(r"\w+", text) if word not in known]
    hints = ((word, did_you_mean(word, known)) for word in unknown)
    return next((f"the parameter has no axis `{word}`; {hint}" for word, hint in hints if hint), "")


def _named_axes(expr: Expr) -> Iterator[str]:
    """The axes that an expression names."""
    match expr:
        case Source(axes=axes):
            yield axes
        case Mv(before=before, after=after):
            yield f"{show(before)} {show(after)}"
        case Part(axis=str(axis)) | At(axis=str(axis)) | Pad(axis=str(axis)) | Cat(axis=str(axis)):
            yield axis
        case _:
            pass
    for node in expr.inputs():
        yield from _named_axes(node)


def axes_problem(
    declared: Declared, rule: Rule, infos: Sequence[TensorInfo], error: AxesError, defaults: Sequence[str]
) -> Problem:
    """Axes that cannot be converted to the declared ones. `defaults` are those of the adapter for sources without."""
    texts = [text for expr in rule.every for text in _named_axes(expr)]
    texts += defaults if "" in texts else ()
    return Problem(
        code="BU108" if isinstance(error, DtypeError) else "BU106",
        parameter=declared.name,
        rule=rule,
        sources=tuple(info.name for info in infos),
        expected=show(declared.axes),
        actual=", ".join(str(list(info.shape)) for info in infos[:3]),
        message=str(error),
        help=_misspelt(declared, texts),
    )
