# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Which checkpoint tensors each module of a reference holds, and the modules of a graph that read the same ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from bringup.adapters.planning.plan import Plan

Owners = Mapping[str, frozenset[str]]


def owners_in_transformers(model: Any, tensors: Iterable[str]) -> Owners:
    """The checkpoint tensors of each module of a transformers model: those of its parts too.

    The names are converted as transformers does when it loads them. A tensor that it splits has no owner.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    conversions: list[Any] = getattr(model, "_weight_conversions", None) or []
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    splits = {pattern for each in converters if len(each.target_patterns) > 1 for pattern in each.source_patterns}
    state = model.state_dict()
    found: defaultdict[str, set[str]] = defaultdict(set)
    modules = {name for name, _ in model.named_modules() if name}
    for tensor in tensors:
        key, pattern = rename_source_key(tensor, renamings, converters, model.base_model_prefix, state)
        if key.rpartition(".")[0] in modules and pattern not in splits:
            for name in _around(key):
                found[name].add(tensor)
    return {name: frozenset(held) for name, held in found.items()}


def owners_by_name(modules: Collection[str], plan: Plan) -> Owners:
    """The same for modules known by name only: the tensors whose names start with the module's name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for tensor in plan.headers:
        for name in {*_around(tensor), *_around(tensor.removeprefix(plan.prefix))}:
            if name in modules:
                found[name].add(tensor)
    return {name: frozenset(held) for name, held in found.items()}


def counterparts(plan: Plan, owners: Owners, modules: Collection[str]) -> dict[str, str]:
    """For modules of the graph, the module of the reference with another name that holds the same tensors.

    `modules` are those of the reference. A module of the same name is the counterpart in any case, so that a rule that
    reads the tensors of another module is found. A pair holds all tensors that either has, and no other module
    of the graph reads them. A pair that is not unique is left out.
    """
    readers: defaultdict[str, set[str]] = defaultdict(set)
    read: defaultdict[str, set[str]] = defaultdict(set)
    for parameter, tensors in plan.requests:
        for tensor in tensors:
            readers[tensor].add(parameter)
            for name in _around(parameter):
                read[name].add(tensor)
    theirs: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for name, held in owners.items():
        theirs[held].append(name)
    ours: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for name, held in read.items():
        if all(reader.startswith(f"{name}.") for tensor in held for reader in readers[tensor]):
            ours[frozenset(held)].append(name)
    pairs = ((ours[held], names) for held, names in theirs.items() if held in ours)
    return {
        one[0]: other[0]
        for one, other in pairs
        if len(one) == len(other) == 1 and one[0] not in modules and other[0] in modules
    }


def renamed(activations: Mapping[str, Any], names: Mapping[str, str], suffix: str) -> dict[str, Any]:
    """Activations with our names for the modules in `names`, {ours: theirs}; those of other modules are the same.

    `suffix` separates a module's name from the rest of an activation's.
    """
    back = {theirs: ours for ours, theirs in names.items()}

    def of(name: str) -> str:
        module, at, rest = name.partition(suffix)
        return f"{back.get(module, module)}{at}{rest}"

    return {of(name): array for name, array in activations.items()}


def _around(name: str) -> Iterator[str]:
    """The modules around a parameter or a tensor, by name."""
    while name := name.rpartition(".")[0]:
        yield name
