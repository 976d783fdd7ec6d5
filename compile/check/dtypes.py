"""A tensor of one layer with another float dtype than the same tensor of the other layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

from bringup.adapters.planning.plan import Plan
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic, Severity, Sites
from bringup.grouping import digits, grouped
from bringup.spec import FLOATS

DTYPE = attrgetter("dtype")


def odd_dtypes(plan: Plan) -> Iterator[Diagnostic]:
    """Warnings for the minority: fewer than half of at least three tensors whose names differ only in numbers."""
    odd: dict[tuple[str, str], list[str]] = {}
    for names in _by_name(plan):
        usual, count = Counter(names.values()).most_common(1)[0]
        if 2 * count > len(names) > 2:
            for name, dtype in names.items():
                if dtype != usual:
                    odd.setdefault((dtype, usual), []).append(name)
    for (dtype, usual), names in odd.items():
        first = plan.entries.get(plan.required[names[0]])
        yield Diagnostic(
            code="BU135",
            severity=Severity.WARNING,
            message=f"`{', '.join(grouped(names))}` is stored as {dtype}, the same tensors of other layers as {usual}",
            help="values are rounded to the parameter's dtype; was one part of the checkpoint saved by another script?",
            parameter=", ".join(grouped(dict.fromkeys(plan.required[name] for name in names))),
            sources=tuple(names),
            expected=usual,
            actual=dtype,
            **(Sites(where=first.rule.site, declared=first.declared.site) if first else Sites()) | stored(plan, names),
        )


def _by_name(plan: Plan) -> Iterable[dict[str, str]]:
    """The float tensors that are read, {name: dtype}, grouped by names that differ only in numbers.

    Groups whose last section has the same dtype everywhere are omitted first, which is fast and leaves few.
    """
    infos = plan.headers.values()
    floats = {
        dtype: [info.name for info in infos if info.dtype == dtype] for dtype in sorted({*map(DTYPE, infos)} & FLOATS)
    }
    ends = {dtype: [name.rpartition(".")[2] for name in names] for dtype, names in floats.items()}
    common = Counter(chain.from_iterable(map(set, ends.values())))
    alike: dict[str, dict[str, str]] = {}
    for dtype, steps in ends.items():
        for name, end in zip(floats[dtype], steps, strict=True):
            if (common[end] > 1 or end.isdecimal()) and name in plan.required:
                alike.setdefault(digits(name)[0], {})[name] = dtype
    return alike.values()
