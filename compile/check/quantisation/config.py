"""A config with a quantisation that its tensors contradict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.quantization import by_method, format_of, part_of, parts_of
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.shapes import stored
from bringup.compile.check.quantisation.cause import (
    bare_names,
    parameters_of,
    reads,
    words_for,
)
from bringup.compile.check.quantisation.other_settings import fitting, lacking, transposed
from bringup.compile.check.quantisation.statement import statement
from bringup.diagnostics import Diagnostic
from bringup.grouping import listed
from bringup.spec import FLOATS

if TYPE_CHECKING:
    from bringup.compile.job import Job


def otherwise(job: Job, words: Mapping[str, object]) -> Iterable[Cause]:
    """The cause if other values of the config's keys match the stored matrices."""
    found = fitting(job, words)
    if found is None:
        return
    plan, place = job.plan, statement(job)
    matrices = parts_of(name for name in plan.headers if name in found.tensors)
    names = [name for parts in matrices.values() for name in parts.values()]
    finding = Diagnostic(
        code="BU137",
        message=f"{place.sets}, but the checkpoint stores {listed(matrices)} otherwise",
        help=f"set {place.group} as the tensors require: {found}",
        parameter=parameters_of(plan, matrices),
        sources=tuple(names),
        expected=place.sets.partition(" sets ")[2],
        actual=str(found),
        **stored(plan, names),
    )
    yield Cause(finding, found.tensors, frozenset(found.words))


def incomplete(job: Job, words: Mapping[str, object]) -> Iterable[Cause]:
    """The cause if every matrix lacks one of its parts, or has one transposed: otherwise each would be a finding."""
    plan, place = job.plan, statement(job)
    for part, names in transposed(plan).items():
        finding = Diagnostic(
            code="BU137",
            message=f"{place.sets}, but the checkpoint has {listed(names)} transposed",
            help=f"save `{part}` in the layout of the format",
            parameter=parameters_of(plan, parts_of(names)),
            sources=tuple(names),
            **stored(plan, names),
        )
        yield Cause(finding, frozenset(names))
    for part, names in lacking(plan).items():
        matrices = parts_of(names)
        others = _instead(plan, names)
        called = f"; is it stored as `{others[0].rpartition('.')[2]}`?" if others else ""
        finding = Diagnostic(
            code="BU137",
            message=f"{place.sets}, but the checkpoint stores {listed(matrices)} without `{part}`",
            help=f"give the checkpoint that has them, or state how this one is quantised{called}",
            parameter=parameters_of(plan, matrices),
            sources=tuple(names),
            expected=part,
        )
        yield Cause(finding, frozenset([*names, *others]))


def _instead(plan: Plan, names: Iterable[str]) -> list[str]:
    """The unread tensors of the modules that lack a part, if each of these has one of the same name."""
    modules = {plan.prefix + name.rpartition(".")[0].removeprefix(plan.prefix) for name in names}
    found: dict[str, list[str]] = {}
    for name in plan.unread:
        module, _, end = name.rpartition(".")
        if module in modules:
            found.setdefault(end, []).append(name)
    return next((each for each in found.values() if len(each) == len(modules)), list[str]())


def unquantised(job: Job, words: Mapping[str, object], *, stated: bool) -> Iterable[Cause]:
    """The cause if the config states a quantisation that tensors do not have: matrices without the parts of its format.

    `stated`: the config's keys have a finding of their own.
    """
    plan, place, found = job.plan, statement(job), dict[str, dict[str, str]]()
    for p in plan.problems:
        for bare, parts in parts_of(p.sources if p.code == "BU101" else ()).items():
            plain = bare if bare in plan.headers else plan.prefix + bare
            if plain in plan.headers and plan.headers[plain].dtype in FLOATS:
                found.setdefault(plain, {}).update(parts)
    packed = {name for p in plan.problems if p.code == "BU108" and stated for name in p.sources}
    if not (found or stated):
        return
    names = found or dict.fromkeys(packed) or _matrices(plan)
    dtypes = ", ".join(sorted({plan.headers[name].dtype for name in names if name in plan.headers}))
    parts = dict.fromkeys(part for each in found.values() for part in each)
    lacking = f" without {', '.join(f'`{part}`' for part in parts)}" if parts else ""
    row = by_method(str(words.get("quant_method", "")))
    some = found and len(found) < len({part[0] for name in plan.required if (part := part_of(name))})
    finding = Diagnostic(
        code="BU137",
        message=f"{place.sets}, but the checkpoint stores {listed(names)} as {dtypes}{lacking}",
        help=(
            f"if these modules were not converted, list them in {place.modules}"
            if some
            else "give the checkpoint that has the scales, or the one that was quantised"
            if packed and not found
            else f"if the weights were dequantised, {place.removal}"
        ),
        parameter=parameters_of(plan, found or packed),
        sources=tuple(names if found or packed else ()),
        expected=row.name if row else str(words.get("quant_method", "")),
        actual=dtypes,
        **stored(plan, list(names)),
    )
    yield Cause(finding, frozenset({*found, *packed, *(n for each in found.values() for n in each.values())}))


def of_another(job: Job, words: Mapping[str, object]) -> Iterable[Cause]:
    """The cause if most matrices are in another format than the config states.

    A matrix in another format lacks some parts, and others are unread or wrong; a wrong name, block size or dtype
    causes only one of these.
    """
    plan = job.plan
    if len({p.code for p in plan.problems}) + bool(plan.unread) < 2:
        return
    stems = {part[0] for name in bare_names(plan, plan.required) if (part := part_of(name))}
    wrong: dict[str, set[str]] = {}
    for code, names in [*((p.code, p.sources) for p in plan.problems), ("unread", plan.unread)]:
        for name in bare_names(plan, names):
            part = part_of(name)
            if (plain := part[0] if part else name) in stems:
                wrong.setdefault(plain, set()).add("missing" if code == "BU101" else code)
    every = wrong.keys() == stems and len(set[str]().union(*wrong.values())) > 1
    others = [plain for plain, kinds in wrong.items() if every or len(kinds) > 1]
    if len(others) < 2 or 2 * len(others) < len(stems):
        return
    headers = {bare: name for name, bare in zip(plan.headers, bare_names(plan, plan.headers), strict=True)}
    parts = {plain: found for plain, found in parts_of(headers).items() if plain in stems}
    scales = {plain: parts.get(plain, {}) for plain in others}
    matrices = {plain: {**scales[plain], **({"weight": plain} if plain in headers else {})} for plain in others}
    row = format_of(part for each in matrices.values() for part in each)
    tensors = {name for plain in stems for name in (plain, *parts.get(plain, {}).values())}
    wanted = {name for name in bare_names(plan, plan.required) if (part := part_of(name)) and part[0] in stems}
    as_stored = {
        headers.get(plain, plain): {part: headers[name] for part, name in each.items()}
        for plain, each in scales.items()
    }
    proposed = words_for(plan, row, as_stored) if row else None
    place = statement(job)
    have = dict.fromkeys(part for each in matrices.values() for part in each)
    sources = [headers[name] for each in matrices.values() for name in each.values()]
    finding = Diagnostic(
        code="BU137",
        message=f"{place.sets}, and {len(others)} matrices are in another format"
        f"{f' ({row.name})' if row else ''}: {listed(others)} have {', '.join(f'`{part}`' for part in have)}",
        help=place.replacement(proposed)
        if proposed and reads(job, proposed)
        else f"give the {place.group} that the converter of these files wrote",
        parameter=parameters_of(plan, others),
        sources=tuple(sources),
        expected=str(words.get("quant_method", "")),
        actual=row.name if row else "",
        **stored(plan, sources),
    )
    yield Cause(finding, frozenset(tensors | wanted))


def _matrices(plan: Plan) -> list[str]:
    return [name for name, info in plan.headers.items() if name in plan.required and len(info.shape) > 1]
