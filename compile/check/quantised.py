"""A checkpoint in a quantiser's format that no rule reads, or a config that states one its tensors are not in.

Each is one finding, whatever it leaves missing and unread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import (
    WORDS,
    Format,
    block_size,
    by_method,
    format_of,
    part_of,
    parts_of,
    quantization_words,
)
from bringup.adapters.schemes.registry import read_quantisation
from bringup.compile.check.shapes import stored
from bringup.compile.check.unruled import tensors_of_unruled
from bringup.compile.other_settings import fitting, lacking, turned
from bringup.diagnostics import Diagnostic, Severity
from bringup.grouping import grouped, listed, roots
from bringup.shown import shown
from bringup.spec import FLOATS

if TYPE_CHECKING:
    from bringup.compile.job import Job

CONFIG_KEYS = ("quantization_config", "quant_method")

Parts = Mapping[str, Mapping[str, str]]  # plain tensor → part → name


class Explained(NamedTuple):
    """A job without what its quantisation explains, and the findings that say so. `unread` counts tensors."""

    job: Job
    findings: Sequence[Diagnostic] = ()
    unread: int = 0


def without_quantised(job: Job) -> Explained:
    """Separates what comes of a quantisation that the job's rules do not read from all other facts."""
    on_config = [finding for finding in job.findings if finding.parameter in CONFIG_KEYS]
    plan = job.plan
    if not (plan.problems or plan.unread or on_config):
        return Explained(job)
    words, unruled = quantization_words(job.config), tensors_of_unruled(plan)
    causes = [*_otherwise(job, words)] if words else []
    causes = causes or [*_foreign(job, words, unruled)]
    if not causes and words:
        causes = (
            [*_unquantised(job, words, stated=bool(on_config))]
            or [*_incomplete(job, words)]
            or [*_of_another(job, words)]
        )
    if not causes:
        return Explained(job)
    tensors = {name for cause in causes for name in _bare(plan, cause.tensors)}
    unread = [name for name in plan.unread if name.removeprefix(plan.prefix) not in tensors]
    problems = [left for p in plan.problems if (left := _without(p, tensors, plan.prefix))]
    rest = replace(plan, problems=problems, unread=unread)
    keys = {key for cause in causes for key in cause.keys}
    of_words = [f for f in job.findings if f.parameter in keys or (f.code == "BU120" and f.parameter in words)]
    findings = [finding for finding in job.findings if finding not in (*on_config, *of_words)]
    found = [cause.finding for cause in causes]
    return Explained(replace(job, plan=rest, findings=findings), found, len(plan.unread) - len(unread))


class _Cause(NamedTuple):
    """A finding with the tensors and the keys of the config that it explains."""

    finding: Diagnostic
    tensors: frozenset[str]
    keys: frozenset[str] = frozenset()


def _without(problem: Problem, tensors: Container[str], prefix: str) -> Problem | None:
    """What is left of a problem: of absent tensors those that are not explained, of any other all or nothing."""
    left = tuple(name for name in problem.sources if name.removeprefix(prefix) not in tensors)
    if len(left) == len(problem.sources):
        return problem
    return replace(problem, sources=left) if left and problem.code in ("BU101", "BU109") else None


def _foreign(job: Job, words: Mapping[str, object], unruled: Collection[str]) -> Iterable[_Cause]:
    """One cause for each format that matrices are stored in and no rule reads, but of parameters without any rule."""
    plan, method = job.plan, str(words.get("quant_method", ""))
    touched = parts_of(plan.unread)  # matrices of which a part is unread
    if not touched:
        return
    absent = parts_of(_bare(plan, (n for p in plan.problems if p.code in ("BU101", "BU109") for n in p.sources)))
    lacking = {frozenset(parts) for parts in absent.values()}
    formats: dict[str, tuple[Format, dict[str, Mapping[str, str]]]] = {}
    for plain, parts in parts_of(plan.headers).items():
        if plain not in touched or any(name in plan.wanted for name in parts.values()):
            continue
        row = format_of(parts, method)
        if row is None or any(name in unruled for name in parts.values()):
            continue
        if not (_renamed(plan, plain, parts, absent) or _elsewhere(plan, plain, parts, lacking)):
            formats.setdefault(row.name, (row, {}))[1][plain] = parts
    for row, matrices in formats.values():
        names = {name for parts in matrices.values() for name in parts.values()}
        wanted = {name for plain in _bare(plan, matrices) for name in absent.get(plain, {}).values()}
        yield _Cause(_finding(job, words, row, matrices), frozenset(names | wanted | matrices.keys()))


def _otherwise(job: Job, words: Mapping[str, object]) -> Iterable[_Cause]:
    """The cause where other words of the config explain how the matrices are stored."""
    found = fitting(job, words)
    if found is None:
        return
    plan = job.plan
    matrices = parts_of(name for name in plan.headers if name in found.tensors)
    names = [name for parts in matrices.values() for name in parts.values()]
    finding = Diagnostic(
        code="BU137",
        message=f"config.json says {_quoted(words)}, and the checkpoint stores {listed(matrices)} otherwise",
        help=f"as its tensors are, say so in `quantization_config`: {found}",
        parameter=_parameters(plan, matrices),
        sources=tuple(names),
        expected=_quoted(words),
        actual=str(found),
        **stored(plan, names),
    )
    yield _Cause(finding, found.tensors, frozenset(found.words))


def _incomplete(job: Job, words: Mapping[str, object]) -> Iterable[_Cause]:
    """The cause where no matrix has one of its parts, or all have one transposed: each would be a finding else."""
    plan = job.plan
    for part, names in turned(plan).items():
        finding = Diagnostic(
            code="BU137",
            message=f"config.json says {_quoted(words)}, and the checkpoint has {listed(names)} with rows for columns",
            help=f"save `{part}` as the format has it",
            parameter=_parameters(plan, parts_of(names)),
            sources=tuple(names),
            **stored(plan, names),
        )
        yield _Cause(finding, frozenset(names))
    for part, names in lacking(plan).items():
        matrices = parts_of(names)
        finding = Diagnostic(
            code="BU137",
            message=f"config.json says {_quoted(words)}, and the checkpoint stores {listed(matrices)} without `{part}`",
            help="give the checkpoint that has them, or say how this one is quantised",
            parameter=_parameters(plan, matrices),
            sources=tuple(names),
            expected=part,
        )
        yield _Cause(finding, frozenset(names))


def _bare(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    """The names without the prefix that a checkpoint may carry or lack."""
    return (name.removeprefix(plan.prefix) for name in names)


def _renamed(plan: Plan, plain: str, parts: Mapping[str, str], absent: Parts) -> bool:
    """Whether rules read the matrix as quantised too, and only miss its scales under another name."""
    scales = [plan.headers[name] for name in parts.values()]
    read = plain in plan.headers and plain.removeprefix(plan.prefix) in absent
    return read and len(scales) == 1 and len(scales[0].shape) == 2


def _elsewhere(plan: Plan, plain: str, parts: Mapping[str, str], lacking: Container[Collection[str]]) -> bool:
    """Whether rules read matrices in this format, and none of this name: names are wrong, not the format."""
    return frozenset(parts) in lacking and plain not in plan.wanted


def _finding(job: Job, words: Mapping[str, object], row: Format, matrices: Parts) -> Diagnostic:
    plan = job.plan
    parts = dict.fromkeys(part for each in matrices.values() for part in each)
    sources = [name for each in matrices.values() for name in each.values()]
    message = f"says {_quoted(words)}" if words else "has no `quantization_config`"
    return Diagnostic(
        code="BU137",
        message=f"no rule reads quantised matrices ({row.name}): {listed(matrices)}, {len(matrices)} in all, with "
        f"{', '.join(f'`{part}`' for part in parts)}; config.json {message}",
        help=_advice(job, words, row, matrices),
        parameter=_parameters(plan, matrices),
        sources=tuple(sources),
        expected="plain weights",
        actual=row.name,
        **stored(plan, sources),
    )


def _advice(job: Job, words: Mapping[str, object], row: Format, matrices: Parts) -> str:
    proposed = None if words else _words_for(job.plan, row, matrices)
    if proposed and _reads(job, proposed):
        return f'say so in config.json: "quantization_config": {json.dumps(proposed)}'
    if words.get("quant_method") in row.methods and _reads(job, words):
        return (
            "these modules are taken as not converted: correct the list of them in `quantization_config`, or give "
            "their plain weights"
        )
    how = f" ({row.dequantise})" if row.dequantise else ""
    return f"give the checkpoint that was quantised, or dequantise this one{how}" + (
        " and remove `quantization_config`" if words and not row.dequantise else ""
    )


def _words_for(plan: Plan, row: Format, matrices: Parts) -> dict[str, object] | None:
    """The `quantization_config` that states a format, where its tensors tell all of it."""
    if "mxfp4" in row.methods:
        return {"quant_method": "mxfp4"}
    pairs = [
        (plan.headers[plain].shape, plan.headers[name].shape)
        for plain, parts in matrices.items()
        for name in parts.values()
        if plain in plan.headers
    ]
    if "nvfp4" in row.methods:
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    if "fbgemm_fp8" in row.methods:
        floats = {plan.headers[plain].dtype for plain in matrices if plain in plan.headers} == {"float8_e4m3fn"}
        return {"quant_method": "fp8"} if floats else None
    block = block_size(pairs) if "fp8" in row.methods and pairs else None
    return {"quant_method": "fp8", "weight_block_size": list(block)} if block else None


def _reads(job: Job, words: Mapping[str, object]) -> bool:
    """Whether a scheme reads weights that the config describes so."""
    found = read_quantisation({"quantization_config": dict(words)}, job.family.name)
    return found.stored is not None and not any(finding.severity is Severity.ERROR for finding in found.findings)


def _unquantised(job: Job, words: Mapping[str, object], *, stated: bool) -> Iterable[_Cause]:
    """The cause where the config says more than the tensors show: matrices without the parts of its format.

    `stated`: the config's words are a finding of their own.
    """
    plan, found = job.plan, dict[str, dict[str, str]]()
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
    some = found and len(found) < sum(1 for name in plan.wanted if part_of(name))
    finding = Diagnostic(
        code="BU137",
        message=f"config.json says {_quoted(words)}, and the checkpoint stores {listed(names)} as {dtypes}{lacking}",
        help=(
            "if these modules were not converted, list them in `modules_to_not_convert` of `quantization_config`"
            if some
            else "give the checkpoint that has the scales, or the one that was quantised"
            if packed and not found
            else "if the weights were dequantised, remove `quantization_config` from config.json"
        ),
        parameter=_parameters(plan, found or packed),
        sources=tuple(names if found or packed else ()),
        expected=row.name if row else str(words.get("quant_method", "")),
        actual=dtypes,
        **stored(plan, list(names)),
    )
    yield _Cause(finding, frozenset({*found, *packed, *(n for each in found.values() for n in each.values())}))


def _of_another(job: Job, words: Mapping[str, object]) -> Iterable[_Cause]:
    """The cause where most matrices are in another format than the config says.

    Of a matrix in another format something is missing, and something else is unread or wrong; a name that is off, a
    block size or a dtype is one of these alone.
    """
    plan = job.plan
    stems = {part[0] for name in _bare(plan, plan.wanted) if (part := part_of(name))}
    wrong: dict[str, set[str]] = {}
    for code, names in [*((p.code, p.sources) for p in plan.problems), ("unread", plan.unread)]:
        for name in _bare(plan, names):
            part = part_of(name)
            if (plain := part[0] if part else name) in stems:
                wrong.setdefault(plain, set()).add("missing" if code == "BU101" else code)
    every = wrong.keys() == stems and len(set[str]().union(*wrong.values())) > 1
    others = [plain for plain, kinds in wrong.items() if every or len(kinds) > 1]
    if len(others) < 2 or 2 * len(others) < len(stems):
        return
    headers = {bare: name for name, bare in zip(plan.headers, _bare(plan, plan.headers), strict=True)}
    parts = {plain: found for plain, found in parts_of(headers).items() if plain in stems}
    matrices = {plain: {**parts.get(plain, {}), **({"weight": plain} if plain in headers else {})} for plain in others}
    row = format_of(part for each in matrices.values() for part in each)
    tensors = {name for plain in stems for name in (plain, *parts.get(plain, {}).values())}
    wanted = {name for name in _bare(plan, plan.wanted) if (part := part_of(name)) and part[0] in stems}
    proposed = _words_for(plan, row, matrices) if row else None
    have = dict.fromkeys(part for each in matrices.values() for part in each)
    finding = Diagnostic(
        code="BU137",
        message=f"config.json says {_quoted(words)}, and {len(others)} matrices are in another format"
        f"{f' ({row.name})' if row else ''}: {listed(others)} have {', '.join(f'`{part}`' for part in have)}",
        help=f'say so in config.json: "quantization_config": {json.dumps(proposed)}'
        if proposed and _reads(job, proposed)
        else "give the `quantization_config` that the converter of these files wrote",
        parameter=_parameters(plan, others),
        sources=tuple(headers[name] for each in matrices.values() for name in each.values()),
        expected=str(words.get("quant_method", "")),
        actual=row.name if row else "",
        **stored(plan, [headers[name] for each in matrices.values() for name in each.values()]),
    )
    yield _Cause(finding, frozenset(tensors | wanted))


def _matrices(plan: Plan) -> list[str]:
    return [name for name, info in plan.headers.items() if name in plan.wanted and len(info.shape) > 1]


def _parameters(plan: Plan, plains: Iterable[str]) -> str:
    bare = set(_bare(plan, plains))
    readers = [parameter for parameter, names in plan.requests if not bare.isdisjoint(_bare(plan, names))]
    return ", ".join(grouped(roots(readers, plan.signature)))


def _quoted(words: Mapping[str, object]) -> str:
    """The words that describe the weights, as the config has them."""
    return ", ".join(f"`{key}` = {shown(words[key])}" for key in WORDS if key in words) or "`quantization_config`"
