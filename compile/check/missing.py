"""Missing tensors that rules read, and unread tensors: often two sides of one mistake."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import part_of
from bringup.compile.check.facts.config_keys import ConfigWords
from bringup.compile.check.facts.requests import Readers, parameters_of, sites_of
from bringup.compile.check.facts.shapes import stored
from bringup.compile.check.fused import fused, unread_scales
from bringup.compile.check.numbering import numbering, past_end, surplus
from bringup.compile.check.pairing import Group, Pair, absent, flat, pairs, renamed
from bringup.compile.check.quantisation.matrices import NONE, Joined, Matrices
from bringup.compile.check.spelling import respelt
from bringup.compile.check.wrappers import foreign, lora, prefixed, wrapped
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, grouped, roots

# Last sections of names: of weights, and of the tensors that quantisers store in addition to or instead of one (AWQ,
# GPTQ, bitsandbytes, compressed-tensors, DeepSeek's fp8, MXFP4).
_WEIGHT = re.compile(r"(^|_)(weight|bias|kernel|gamma|beta|embedding)s?$")
_QUANTISED = re.compile(
    r"qweight|qzeros|g_idx|scales?(_inv|_2)?$|zeros?(_point)?$|absmax|quant_(map|state)|weight_(packed|shape|format)"
    r"|blocks$|SCB$|input_amax|activation_scale"
)


def missing_and_unread(
    plan: Plan,
    known: Container[str],
    lost: Diagnostic | None,
    words: ConfigWords | None = None,
    matrices: Matrices = NONE,
) -> Iterator[Diagnostic]:
    """One diagnostic for each renamed, missing and unread group; complete subtrees are named by their root.

    `known` are tensors, absent or unread, that another finding explains. `lost` is the finding of a missing or
    unreadable file with unknown tensors: missing tensors without another name belong to that finding. `words` has the
    keys of the config. Each of `matrices` is one tensor where names are compared.
    """
    readers = _readers_of_absent(plan, known)
    reported = {name for p in plan.problems if p.code == "BU108" for name in unread_scales(plan, p.sources)}
    unread = [name for name in plan.unread if name not in reported and name not in known]
    for look in (respelt, lora, wrapped, prefixed, fused, foreign):
        for cause in look(plan, readers, unread):
            yield cause.finding
            readers = {name: problems for name, problems in readers.items() if name not in cause.tensors}
            unread = [name for name in unread if name not in cause.tensors]
    if not (readers or unread):
        return
    joined = matrices.joined(plan, readers, unread)
    found = [pair.of_parts(joined.parts) for pair in _paired(joined)]
    yield from (renamed(plan, readers, pair) for pair in found)
    paired = {name for pair in found for group in (pair.missing, *pair.candidates) for name in flat(group)}
    readers = {name: problems for name, problems in readers.items() if name not in paired}
    unread = [name for name in unread if name not in paired]
    wanted, read = [*plan.required, *plan.dropped], plan.headers.keys() - plan.dropped.keys()
    if lost and readers:
        some = ", ".join(grouped(roots(readers, wanted)))
        message = f"{lost.message}; {len(readers)} tensors that rules read are in no other file: `{some}`"
        yield replace(lost, message=message, sources=tuple(readers))
        readers = {}
    for names in _by_pattern(roots(readers, wanted), plan).values():
        yield _missing(plan, readers, names, words)
    for names in _of_parts(_by_pattern(roots(unread, read)).values()):
        yield _unread(plan, names, words)


def _paired(joined: Joined) -> Iterator[Pair]:
    """The pairs of absent and unread tensors: subtrees first, then single tensors of the rest with the same parent."""
    plan, readers, unread = joined.plan, joined.readers, joined.unread
    wanted, read = [*plan.required, *plan.dropped], plan.headers.keys() - plan.dropped.keys()
    for whole in (True, False):
        missing = _by_pattern(roots(readers, wanted) if whole else {name: [name] for name in readers})
        unread_too = _by_pattern(roots(unread, read) if whole else {name: [name] for name in unread})
        for pair in list(pairs(plan, readers, missing, unread_too, siblings=not whole)):
            yield pair
            paired = {*flat(pair.missing), *(name for group in pair.candidates for name in flat(group))}
            readers = {name: problems for name, problems in readers.items() if name not in paired}
            unread = [name for name in unread if name not in paired]


def _of_parts(groups: Iterable[Group]) -> Iterator[Group]:
    """The groups; those of the same part of quantised matrices are one, as a mistake of the converter."""
    parts: dict[str, list[str]] = {}
    for names in groups:
        found = {part[1] if (part := part_of(name)) else "" for name in flat(names)}
        if len(found) == 1 and (part := found.pop()):
            parts.setdefault(part, []).extend(flat(names))
        else:
            yield names
    yield from ({name: [name] for name in names} for names in parts.values())


def _readers_of_absent(plan: Plan, known: Container[str]) -> dict[str, list[Problem]]:
    readers: dict[str, list[Problem]] = {}
    for problem in plan.problems:
        for name in problem.sources if problem.code in ("BU101", "BU109") else ():
            if name not in known:
                readers.setdefault(name, []).append(problem)
    return readers


def _by_pattern(found: dict[str, list[str]], plan: Plan | None = None) -> dict[str, dict[str, list[str]]]:
    """Roots that differ only in layer numbers, grouped: pattern → {root: names below it}.

    With a plan, so are the numbers after the last one of its checkpoint.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for root, names in found.items():
        pattern = _pattern(root.rpartition(".")[0] + ".+" if plan and past_end(plan, root) else root)
        groups.setdefault(pattern, {})[root] = names
    return groups


def _pattern(root: str) -> str:
    """The root without its numbers, except a last one: layer 12 is one group, and so is expert 3 of every layer."""
    head, _, last = root.rpartition(".")
    return f"{digits(head + '.')[0]}{last}" if head else digits(root)[0]


def _missing(plan: Plan, readers: Readers, names: Group, words: ConfigWords | None) -> Diagnostic:
    untied = readers[flat(names)[0]][0]
    if untied.code == "BU109":
        return Diagnostic(
            code="BU109",
            message=f"`{untied.parameter}` is missing: {untied.message}",
            help=untied.help,
            parameter=untied.parameter,
            sources=flat(names),
            **sites_of(plan, readers, flat(names)),
        )
    return Diagnostic(
        code="BU101",
        message=absent(names),
        help=untied.help
        or numbering(plan, names, words)
        or "is the checkpoint complete, and does its config belong to it? a name that never existed is the rule's",
        parameter=parameters_of(plan, readers, flat(names)),
        sources=flat(names),
        **sites_of(plan, readers, flat(names)),
    )


def _unread(plan: Plan, names: Group, words: ConfigWords | None) -> Diagnostic:
    listing, count = ", ".join(grouped(names)), len(flat(names))
    first = plan.headers[flat(names)[0]]
    pattern = _drop_pattern(names).removeprefix(plan.prefix)
    below = "" if count == len(names) else f" ({count} tensors below it)"
    shape = f" {list(first.shape)}" if len({plan.headers[name].shape for name in flat(names)}) == 1 else ""
    return Diagnostic(
        code="BU105",
        message=f"no rule reads the tensor `{listing}`{below or shape}",
        help=surplus(plan, names, words) or _advice(plan, names, pattern),
        sources=flat(names),
        **stored(plan, flat(names)),
    )


def _advice(plan: Plan, names: Group, pattern: str) -> str:
    """Advises to drop them only if they do not resemble weights, a quantiser's tensors or layers."""
    below = flat(names)
    leaves = {name.rpartition(".")[2] for name in below}
    if any(_QUANTISED.search(name.rpartition(".")[2]) and not _is_of_a_norm(plan, name) for name in below):
        return "it belongs to a quantised weight: the config must state how it is quantised, and a rule must read it"
    shapes = {declared.storage[0] for declared in plan.signature.values()}
    numbered = any(root.rpartition(".")[2].isdigit() for root in names)
    if numbered or any(_WEIGHT.search(leaf) for leaf in leaves) or any(plan.headers[n].shape in shapes for n in below):
        return "it looks like a weight that the model needs: add a parameter to the graph, and a rule that reads it"
    return (
        f'if it is not a weight, drop it: drop("{pattern}", why="…") in the adapter; of a built-in family, '
        f'with_(drops={{"{pattern}": "…"}}) in a file for --adapter'
    )


def _is_of_a_norm(plan: Plan, name: str) -> bool:
    """Whether a `scale` may be the weight of a norm: a vector of a module that has no matrix."""
    module, _, leaf = name.rpartition(".")
    others = (other for other in plan.headers if other.rpartition(".")[0] == module)
    return leaf == "scale" and all(len(plan.headers[other].shape) == 1 for other in others)


def _drop_pattern(names: Group) -> str:
    """The pattern for a drop: layer numbers and names below a subtree's root as variables."""
    root, below = next(iter(names.items()))
    if len(names) > 1:
        pattern, numbers = digits(root)
        root = pattern.format(*(f"{{{letter}}}" for letter in "LMNOP"[: len(numbers)]))
    return root if len(below) == 1 else f"{root}.{{x:**}}"
