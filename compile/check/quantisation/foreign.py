"""Matrices in a quantiser's format that no rule reads."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.quantization import Format, format_of, parts_of
from bringup.adapters.schemes.arrays import CACHES
from bringup.adapters.schemes.registry import read_quantisation
from bringup.adapters.schemes.scheme import Modules
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.shapes import stored
from bringup.compile.check.quantisation.cause import (
    Parts,
    bare_names,
    parameters_of,
    reads,
    words_for,
)
from bringup.compile.check.quantisation.statement import statement
from bringup.diagnostics import Diagnostic
from bringup.grouping import listed

if TYPE_CHECKING:
    from bringup.compile.job import Job


def foreign(
    job: Job, words: Mapping[str, object], unruled: Collection[str], misnamed: Container[str]
) -> Iterable[Cause]:
    """One cause for each format of matrices that no rule reads, except those of parameters without a rule.

    `misnamed` are matrices that rules would read under another name: names are wrong, not the format.
    """
    plan, method = job.plan, str(words.get("quant_method", ""))
    touched = parts_of(plan.unread)  # matrices with an unread part
    if not touched:
        return
    absent = parts_of(bare_names(plan, (n for p in plan.problems if p.code in ("BU101", "BU109") for n in p.sources)))
    formats: dict[str, tuple[Format, dict[str, Mapping[str, str]]]] = {}
    for plain, parts in parts_of(plan.headers).items():
        if plain not in touched or any(name in plan.required for name in parts.values()):
            continue
        row = format_of(parts, method)
        if row is None or any(name in unruled for name in parts.values()):
            continue
        if plain not in misnamed and not _renamed(plan, plain, parts, absent):
            formats.setdefault(row.name, (row, {}))[1][plain] = parts
    for row, matrices in formats.values():
        names = {name for parts in matrices.values() for name in parts.values()}
        caches = _of_caches(plan, names)
        wanted = {name for plain in bare_names(plan, matrices) for name in absent.get(plain, {}).values()}
        yield Cause(_finding(job, words, row, matrices, caches), frozenset({*names, *caches, *wanted, *matrices}))


def _of_caches(plan: Plan, names: Collection[str]) -> list[str]:
    """The unread scales of caches in the modules of the names: a quantiser writes both."""
    modules = {name.rpartition(".")[0] for name in names}
    split = ((name, *name.rpartition(".")[::2]) for name in plan.unread)
    return [name for name, module, end in split if end in CACHES and module in modules]


def _renamed(plan: Plan, plain: str, parts: Mapping[str, str], absent: Parts) -> bool:
    """Whether rules read the matrix as quantised too, and only its scales have another name."""
    scales = [plan.headers[name] for name in parts.values()]
    read = plain in plan.headers and plain.removeprefix(plan.prefix) in absent
    return read and len(scales) == 1 and len(scales[0].shape) == 2


def _finding(job: Job, words: Mapping[str, object], row: Format, matrices: Parts, caches: Sequence[str]) -> Diagnostic:
    plan = job.plan
    parts = dict.fromkeys(part for each in matrices.values() for part in each)
    parts |= dict.fromkeys(name.rpartition(".")[2] for name in caches)
    sources = [*(name for each in matrices.values() for name in each.values()), *caches]
    place = statement(job)
    return Diagnostic(
        code="BU137",
        message=f"no rule reads quantised matrices ({row.name}): {listed(matrices)}, {len(matrices)} in all, with "
        f"{', '.join(f'`{part}`' for part in parts)}; "
        f"{place.sets if words else f'{place.file} has no `{place.key}`'}",
        help=_advice(job, words, row, matrices),
        parameter=parameters_of(plan, matrices),
        sources=tuple(sources),
        expected="plain weights",
        actual=row.name,
        **stored(plan, sources),
    )


def _advice(job: Job, words: Mapping[str, object], row: Format, matrices: Parts) -> str:
    place = statement(job)
    proposed = None if words else words_for(job.plan, row, matrices)
    if proposed and reads(job, proposed):
        return place.replacement(proposed)
    if words.get("quant_method") in row.methods and reads(job, words):
        listing = f"these modules are listed as unquantised: correct the list in {place.group}"
        naming = "no rule reads these modules as quantised ones: correct the names in the rules"
        return f"{listing if _unquantised(job, matrices) else naming}, or give their plain weights"
    how = f" ({row.dequantise})" if row.dequantise else ""
    return f"give the checkpoint that was quantised, or dequantise this one{how}" + (
        f" and {place.removal}" if words and not row.dequantise else ""
    )


def _unquantised(job: Job, matrices: Iterable[str]) -> bool:
    """Whether the config excludes some of the matrices from quantisation."""
    prefix, storage = job.plan.prefix, read_quantisation(job.config, job.family.name).stored
    modules = (plain.removeprefix(prefix).removesuffix(".weight") for plain in matrices)
    return storage is None or any(
        not storage.stores(Modules.named(prefix + module, module, table=False)) for module in modules
    )
