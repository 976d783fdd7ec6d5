"""Quantised matrices whose name may be wrong: absent ones that rules read in parts, and unread ones that fit these."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import Source
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import part_of, parts_of
from bringup.adapters.planning.rules import Rule
from bringup.adapters.schemes.stored_source import reading_other
from bringup.compile.check.facts.requests import Readers
from bringup.graphs.core.signature import Signature
from bringup.grouping import digits
from bringup.spec import Shape, TensorInfo

if TYPE_CHECKING:
    from bringup.compile.job import Job

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """The names of the parts of absent and of unread matrices, by plain tensor.

    Each unread matrix would be read completely under the name of an absent one, by which its shape is known: `shapes`.
    """

    absent: Mapping[str, Names] = field(default_factory=dict[str, Names])
    unread: Mapping[str, Names] = field(default_factory=dict[str, Names])
    shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])

    def joined(self, plan: Plan, readers: Readers, unread: Sequence[str]) -> Joined:
        """The plan, its absent tensors and unread tensors with each of these matrices as one tensor."""
        there = set(unread)
        absent = {plain: names for plain, names in self.absent.items() if readers.keys() >= set(names)}
        found = {plain: names for plain, names in self.unread.items() if there.issuperset(names)}
        if not (absent and found):
            return Joined(plan, readers, unread, {})
        parts = absent | found
        whole = {name: plain for plain, names in parts.items() for name in names}
        dropped = {name: drop for name, drop in plan.dropped.items() if not _is_in_module_of(name, found)}
        hidden = whole.keys() | (plan.dropped.keys() - dropped.keys())
        headers = {name: info for name, info in plan.headers.items() if name not in hidden}
        for plain, names in found.items():
            headers[plain] = plan.headers[names[0]]._replace(name=plain, shape=self.shapes[plain])
        requests = [(parameter, [whole.get(name, name) for name in names]) for parameter, names in plan.requests]
        joined = replace(plan, headers=headers, requests=requests, dropped=dropped)
        wanted = {whole.get(name, name): problems for name, problems in readers.items()}
        return Joined(joined, wanted, list(dict.fromkeys(whole.get(name, name) for name in unread)), parts)


NONE = Matrices()


@dataclass(frozen=True, slots=True)
class Joined:
    """A plan in which each of some matrices is one tensor; `parts` are their names in the checkpoint."""

    plan: Plan
    readers: Readers
    unread: Sequence[str]
    parts: Mapping[str, Names]


def misnamed(job: Job) -> Matrices:
    """The absent matrices of a job, and the unread ones that may be these.

    The shapes of parts do not determine the shape of the matrix in every format: an unread matrix is planned in place
    of absent ones of each kind. Layers are alike, and so are matrices whose parts are.
    """
    plan = job.plan
    absent = _absent(plan) if plan.unread else {}
    if not absent:
        return NONE
    requests = {parameter: list(names) for parameter, names in plan.requests}
    kinds: dict[tuple[object, ...], str] = {}
    for plain, problems in absent.items():
        axes = (plan.signature[problem.parameter].axes for problem in problems.values())
        kinds.setdefault((digits(plain)[0], *dict.fromkeys(axes)), plain)
    unread: dict[str, Names] = {}
    shapes: dict[str, Shape] = {}
    known: dict[object, Shape | None] = {}
    for plain, tensors in _unread(plan).items():
        facts = frozenset((end, info.dtype, info.shape) for end, info in tensors.items())
        if plain not in absent and facts not in known:
            found = [_shape(job, kind, absent[kind], requests, tensors) for kind in kinds.values()]
            known[facts] = max((shape for shape in found if shape is not None), key=len, default=None)
        if plain not in absent and (shape := known[facts]) is not None:
            unread[plain] = tuple(info.name for info in tensors.values() if info.name not in plan.dropped)
            shapes[plain] = shape
    return Matrices({plain: tuple(problems) for plain, problems in absent.items()}, unread, shapes) if unread else NONE


def _absent(plan: Plan) -> dict[str, dict[str, Problem]]:
    """The matrices that rules read in parts, and of which no part is there: {plain tensor: {part's name: problem}}."""
    missing = {name: p for p in plan.problems if p.code in ("BU101", "BU109") for name in p.sources}
    matrices, found = parts_of(missing), dict[str, dict[str, Problem]]()
    there = parts_of(name for name in plan.headers if name not in plan.dropped) if matrices else {}
    for plain, parts in matrices.items():
        if plain not in there and plain not in plan.headers:
            names = [plain, *parts.values()] if plain in missing else parts.values()
            found[plain] = {name: missing[name] for name in names}
    return found


def _unread(plan: Plan) -> dict[str, dict[str, TensorInfo]]:
    """The quantised matrices of which no rule reads a part: {plain tensor: {end of the name: part}}."""
    there, found = parts_of(plan.headers), dict[str, dict[str, TensorInfo]]()
    for plain in parts_of(plan.unread):
        names = [*([plain] if plain in plan.headers else ()), *there[plain].values()]
        if plain not in plan.required and plan.required.keys().isdisjoint(names):
            found[plain] = {name.removeprefix(_stem(plain)): plan.headers[name] for name in names}
    return found


def _shape(
    job: Job,
    plain: str,
    problems: Mapping[str, Problem],
    requests: Mapping[str, list[str]],
    tensors: Mapping[str, TensorInfo],
) -> Shape | None:
    """The shape of an absent matrix if other tensors, under its name, would be read as its parts; None if not.

    Only the parameters that read it are planned: `requests` has the tensors of each. The shape is () where their rules
    compute them from several matrices.
    """
    plan = job.plan
    renamed = {_stem(plain) + end: info._replace(name=_stem(plain) + end) for end, info in tensors.items()}
    rules = {p.parameter: p.rule for p in problems.values() if isinstance(p.rule, Rule)}
    read = (name for parameter in rules for name in requests[parameter] if name in plan.headers)
    headers = {name: plan.headers[name] for name in read} | renamed
    declared = {name: replace(plan.signature[name], checkpoint_names=()) for name in rules}  # their rules have them
    again = make_plan(Signature(declared), reading_other(job.adapter, rules.values(), headers), headers)
    wrong = {name for problem in again.problems for name in problem.sources} | set(again.unread)
    if any(name in renamed or (part_of(name) or (name,))[0] == plain for name in wrong):
        return None
    first, rule = next(iter(rules.items()))
    return plan.signature[first].storage[0] if isinstance(rule.own_expr, Source) else ()


def _is_in_module_of(name: str, plains: Container[str]) -> bool:
    """Whether a tensor is a part of one of these matrices, or another one in its module, such as a scale of a cache."""
    part = part_of(name)
    return (part[0] if part else f"{name.rpartition('.')[0]}.weight") in plains


def _stem(plain: str) -> str:
    """The beginning that the names of all parts of a matrix have."""
    return plain.removesuffix("weight")
