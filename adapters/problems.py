"""What does not fit, fact by fact, before facts are grouped into diagnostics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bringup.adapters.expr import Source
from bringup.adapters.names import Names
from bringup.adapters.region import Region
from bringup.adapters.rules import Drop, Rule
from bringup.adapters.scope import Scope
from bringup.graphs.axes import Axes, AxesError, shape_of, show
from bringup.graphs.signature import Declared
from bringup.spec import DTYPES, FLOATS, TensorInfo

Leaves = Sequence[tuple[Source, list[TensorInfo | str]]]  # each source, and what it stands for; a str is absent


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
    axes: Axes = ()  # BU102: what the tensor should be, in the order in which it is stored


def unclaimed(declared: Declared, claims: list[tuple[Rule, dict[str, str]]]) -> Problem:
    """A parameter that no rule claims, or several."""
    if not claims:
        return Problem(code="BU103", parameter=declared.name, message="no rule makes this parameter")
    lines = " and ".join(f"`{rule.pattern}` ({rule.site})" for rule, _ in claims)
    return Problem(code="BU110", parameter=declared.name, rule=claims[0][0], message=f"two rules claim it: {lines}")


def shapes(declared: Declared, rule: Rule, misfits: Iterable[tuple[TensorInfo, Axes]]) -> list[Problem]:
    """Tensors whose shape is not what the declaration asks for."""
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


def misfits_beside(leaves: Leaves, scope: Scope) -> list[tuple[TensorInfo, Axes]]:
    """The wrong shapes among the tensors that are there, of a rule that cannot be evaluated since others are absent."""
    found: list[tuple[TensorInfo, Axes]] = []
    if type(scope.names) is not Names:  # in a dialect, a source's axes are not those of the tensors behind it
        return found
    for leaf, behind in leaves:
        info = behind[0]
        if isinstance(info, str) or DTYPES[info.dtype].block:
            continue
        with suppress(AxesError):
            axes = leaf.stored(scope, info.shape)
            if axes and shape_of(axes) != info.shape:
                found.append((info, axes))
    return found


def dtypes(declared: Declared, rule: Rule, region: Region, scope: Scope) -> list[Problem]:
    """Sources of a region whose elements do not become the declared dtype by rounding."""
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


def odd_ones(declared: Declared, rule: Rule, leaves: Leaves) -> list[Problem]:
    """Of tensors that one source of a rule stands for, those of another kind than the rest: an integer expert."""
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


def axes_problem(declared: Declared, rule: Rule, infos: Sequence[TensorInfo], error: AxesError) -> Problem:
    """Axes that cannot be brought to the declared ones."""
    return Problem(
        code="BU106",
        parameter=declared.name,
        rule=rule,
        sources=tuple(info.name for info in infos),
        expected=show(declared.axes),
        actual=", ".join(str(list(info.shape)) for info in infos[:3]),
        message=str(error),
    )
