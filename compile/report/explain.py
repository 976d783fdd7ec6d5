"""Explains a name in a plan: how a parameter is computed, how a tensor is used, or what a module consists of."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr, Mv, Source
from bringup.adapters.algebra.pattern import match
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.planning.coverage import read_bits, total_bits
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.job import Job
from bringup.compile.report import byte_ranges
from bringup.compile.report.describe import copies, dtypes, how, labelled
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.axes import show, sizes_of
from bringup.grouping import listed
from bringup.spec import Site, TensorInfo

MOST = 6  # lines of a kind before a count of the others


@dataclass(frozen=True, slots=True)
class Explanation:
    """A title and labelled lines; a label applies until the next one."""

    title: str
    rows: list[tuple[str, str]]


def explain(job: Job, name: str, parallel: Parallel | None = None, rank: int | None = None) -> list[Explanation]:
    """The parameter and the tensor of that name, or the module; with `parallel`, for each rank or for one.

    Raises BU010 if none exists, BU045, BU130 and BU138 if ranks do not fit.
    """
    ranks = byte_ranges.ranks_of(job, parallel, rank)
    explanations = [_parameter(job, name, ranks)] if name in job.plan.signature else []
    explanations += [_tensor(job, name, ranks)] if name in job.plan.headers else []
    if not explanations and (parts := [part for part in job.plan.signature if part.startswith(f"{name}.")]):
        return [Explanation(f"module {name}", [*labelled("parameters", [_part(job, part) for part in parts])])]
    if not explanations:
        known = [*job.plan.signature, *job.plan.headers]
        hint = did_you_mean(name, known) or "`bringup compile MODEL --emit plan` lists parameters and tensors"
        raise fail("BU010", f"`{job.family.name}` has no parameter and no tensor `{name}`", help=hint)
    return explanations


def _part(job: Job, name: str) -> str:
    declared, entry = job.plan.signature[name], job.plan.entries.get(name)
    sources = listed(dict.fromkeys(info.name for info in entry.tensors)) if entry else "no tensor"
    return f"{name}  {show(declared.axes)}  {list(declared.storage[0])}  of {sources}"


def _parameter(job: Job, name: str, ranks: Mapping[int, Plan]) -> Explanation:
    declared, entry = job.plan.signature[name], job.plan.entries.get(name)
    shape, dtype = declared.storage
    rows = [("declared", f"{show(declared.axes)}  {list(shape)}  {dtype}"), *_line("", declared.site)]
    if entry is None:
        return Explanation(f"parameter {name}", [*rows, *_problems(job, name)])
    rows += [("rule", entry.rule.pattern), *_line("", entry.rule.site)]
    rows += labelled("reads", [_header(info) for info in dict.fromkeys(entry.tensors)])
    leaves = _leaves(job, entry)
    rows += labelled("axes", _axes(job, entry, leaves))
    rows += [("computed", _computed(source)) for source in entry.sources if isinstance(source, Computed)]
    rows += labelled("copies", list(copies(entry)))
    rows += [("dtype", text) for text in dtypes(entry)]
    rows += byte_ranges.of_parameter(name, entry, ranks)
    others = {o: e for o, e in job.plan.entries.items() if o != name and set(entry.tensors) & set(e.tensors)}
    rows += labelled("also read by", [f"{o} ({how(e)})" for o, e in others.items()] or ["nothing else"])
    return Explanation(f"parameter {name}", rows)


def _tensor(job: Job, name: str, ranks: Mapping[int, Plan]) -> Explanation:
    plan, info = job.plan, job.plan.headers[name]
    rows = [("stored", _header(info).removeprefix(f"{name}  ")), *byte_ranges.of_tensor(info, ranks)]
    readers = {p: e for p, e in plan.entries.items() if any(read.name == name for read in e.tensors)}
    if readers:
        rows += labelled("read by", [f"{parameter} ({how(entry)})" for parameter, entry in readers.items()])
        rows += _line("rule", next(iter(readers.values())).rule.site)
        part = read_bits(plan)[name] / total_bits(info)
        rows.append(("coverage", "whole" if part == 1 else f"{part:.1%} of it"))
    elif name in plan.dropped:
        drop = plan.dropped[name]
        rows += [("dropped", f"{drop.why}  (`{drop.pattern}`)"), *_line("rule", drop.site)]
    elif name in plan.required:
        requested_by = plan.required[name]
        rows += [("read by", f"{requested_by}, which cannot be computed"), *_problems(job, requested_by)]
    else:
        rows.append(("read by", "nothing: `bringup check` reports BU105"))
    return Explanation(f"tensor {name}", rows)


def _header(info: TensorInfo) -> str:
    return f"{info.name}  {list(info.shape)}  {info.dtype}" + (f"  in {info.file.name}" if info.file else "")


def _computed(source: Computed) -> str:
    exactness = "exact" if source.exact else "not exact"
    return f"{source.name}, returns {list(source.shape)} {source.dtype} ({exactness})"


def _line(label: str, site: Site | None) -> Iterator[tuple[str, str]]:
    """A site, and its line of source if that can be read."""
    if site:
        yield label, f"{site}  {linecache.getline(site.file, site.line).strip()}".rstrip()


def _problems(job: Job, parameter: str) -> Iterator[tuple[str, str]]:
    """The reasons why a parameter cannot be computed."""
    for problem in (p for p in job.plan.problems if p.parameter == parameter):
        facts = [problem.message, *(f"`{name}`" for name in problem.sources[:MOST])]
        wanted = problem.expected or show(problem.axes)
        facts += [f"should be {wanted}" if wanted else "", f"is {problem.actual}" if problem.actual else ""]
        yield "not computed", f"{problem.code}: {', '.join(fact for fact in facts if fact)}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A source as a rule writes it: its expression, and its name in the checkpoint."""

    source: Source
    owner: Expr
    name: str


def _axes(job: Job, entry: Entry, leaves: list[_Leaf]) -> list[str]:
    """The conversion of each source's axes, as the rules state them, to the declared ones."""
    names, wanted = job.adapter.names(job.plan.headers), show(entry.declared.axes)
    rows: list[str] = []
    for leaf in leaves:
        stored = _stored(job, entry, leaf, names)
        same = " (the same)" if stored == wanted else ""
        rows.append(f"{names[leaf.name].name}: {stored or 'not stated'} → {wanted}{same}")
    return list(dict.fromkeys(rows))


def _stored(job: Job, entry: Entry, leaf: _Leaf, names: Names) -> str:
    """The axes of a source as it is stored: its own, the adapter's default, or the left side of `mv`."""
    if isinstance(leaf.owner, Mv) and leaf.owner.of is leaf.source and not leaf.source.axes:
        return show(leaf.owner.before)
    defaults = job.adapter.default_axes(entry.declared.axes) if isinstance(leaf.owner, Source) else ()
    scope = Scope(sizes_of(entry.declared.axes), defaults, names, {})
    rank = len(leaf.source.stored(scope, None))
    return show(leaf.source.stored(scope, names[leaf.name].shape_in(rank)))


def _leaves(job: Job, entry: Entry) -> list[_Leaf]:
    """Every source of an entry."""
    bindings = match(entry.rule.pattern, entry.declared.name) or {}
    names, read = job.adapter.names(job.plan.headers), {info.name for info in entry.tensors}
    found = [_Leaf(leaf, expr, name) for expr in entry.rule.every for leaf, name in expr.leaves(bindings)]
    return [leaf for leaf in found if leaf.name in names and names[leaf.name].name in read]
