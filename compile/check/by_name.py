"""Findings on weights that are passed by parameter name: the mistake is in their dict, not in a rule or a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from bringup.adapters.planning.plan import Plan
from bringup.diagnostics import Diagnostic
from bringup.graphs.core.axes import show
from bringup.grouping import grouped
from bringup.spec import FLOATS

ALL = "pass an array for each parameter: `graph.signature()` has their names and shapes"


def in_terms_of_weights(plan: Plan, findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The findings of a check, as statements on the dict; one finding if all names lack or have the same prefix."""
    if found := _prefix(plan, findings):
        return found
    return [_reworded(plan, finding) for finding in findings]


def _prefix(plan: Plan, findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The finding for a dict whose unknown names differ from missing ones in their first sections only, and the
    findings on the remaining names.
    """
    missing = [name for name in plan.signature if name not in plan.headers]
    prefixes = {name.partition(".")[0] + "." for name in (*missing, *plan.unread)}
    for prefix in sorted(prefixes) if missing and plan.unread else ():
        lacking = {name.removeprefix(prefix) for name in missing if name.startswith(prefix)}
        extra = {name.removeprefix(prefix) for name in plan.unread if name.startswith(prefix)}
        if lacking == set(plan.unread):
            verb, help, named = "lack", f"add `{prefix}` to these keys", plan.unread
            renamed = {prefix + name for name in lacking}
        elif extra == set(missing):
            verb, help, named = "have", f"remove `{prefix}` from these keys", [prefix + name for name in missing]
            renamed = extra
        else:
            continue
        message = f"{len(named)} names in `weights` {verb} the prefix `{prefix}`, such as `{named[0]}`"
        found = Diagnostic(code="BU101", message=message, help=help, sources=tuple(named))
        rest = (_without(finding, renamed.union(named)) for finding in findings)
        return [found, *(_reworded(plan, finding) for finding in rest if finding is not None)]
    return []


def _without(finding: Diagnostic, names: Collection[str]) -> Diagnostic | None:
    """A finding on missing or unknown names, without these; None if there are no others."""
    if finding.code not in ("BU101", "BU105"):
        return finding
    left = tuple(name for name in finding.sources if name not in names)
    return replace(finding, sources=left) if left else None


def _reworded(plan: Plan, finding: Diagnostic) -> Diagnostic:
    absent = tuple(name for name in finding.sources if name not in plan.headers)
    there = tuple(name for name in finding.sources if name in plan.headers)
    listing = ", ".join(grouped(there))
    own = replace(finding, where=None)
    if finding.code == "BU101" and absent:
        help = f"rename the key `{listing}`" if there else ALL
        return replace(own, message=f"`weights` has no `{', '.join(grouped(absent))}`{_shape(plan, absent)}", help=help)
    if finding.code == "BU105":
        help = "remove it from `weights`, or add the parameter to the graph"
        return replace(own, message=f"the graph has no parameter `{listing}`", help=help)
    if finding.code == "BU102":
        return replace(own, message=_sizes(plan, there), help=_fix(plan, there))
    if finding.code == "BU108" and there:
        stored, declared = plan.headers[there[0]].dtype, plan.signature[there[0]].storage[1]
        message = f"`{listing}` is {stored} in `weights`, the graph declares {declared}"
        help = "pass arrays of floats, of any width" if declared in FLOATS else f"pass arrays of {declared}"
        return replace(own, message=message, help=help)
    return own


def _shape(plan: Plan, names: Sequence[str]) -> str:
    """The declared shape, if all of the parameters have the same."""
    shapes = {plan.signature[name].storage[0] for name in names}
    return f", {list(shapes.pop())}" if len(shapes) == 1 else ""


def _sizes(plan: Plan, names: Sequence[str]) -> str:
    """Shapes as passed and as declared."""
    first = plan.signature[names[0]]
    stored, declared = list(plan.headers[names[0]].shape), list(first.storage[0])
    listing = ", ".join(grouped(names))
    return f"`{listing}` is {stored} in `weights`, the graph declares {declared}, axes `{show(first.axes)}`"


def _fix(plan: Plan, names: Sequence[str]) -> str:
    reversed_ = all(plan.headers[n].shape == plan.signature[n].storage[0][::-1] for n in names)
    return "pass the transpose" if reversed_ else "pass arrays of the declared shape, or correct the graph's config"
