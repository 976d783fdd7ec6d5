"""Tensors that only a parameter without a rule would read. They belong to its finding, and not to another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bringup.adapters.planning.coverage import half_used, partly_read, total_bits
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import parts_of
from bringup.grouping import listed
from bringup.spec import TensorInfo

BITS = range(2, 9)  # of a quantised element


class _Matrix(NamedTuple):
    """A matrix as it is stored: itself, or the parts of its quantisation.

    `size` is its unread size in elements; for a quantised matrix, in bits of its largest part, which has the codes.
    """

    tensors: tuple[TensorInfo, ...]
    quantised: bool
    size: int


Place = tuple[str, str]  # the module, with the numbers up to the layer's only; and the matrix in it
Found = dict[str, set[str]]  # tensor → the parameters that would read it


def tensors_of_unruled(plan: Plan) -> Found:
    """The tensors that are partly or completely unread because parameters have no rule: each with those parameters.

    They are matched by name (`experts.3.up_proj` and `experts.up_proj`); otherwise by module, if its unread tensors
    have as many elements as its parameters without a rule (`gate_up_proj` for `gate_proj` and `up_proj`); otherwise, if
    modules have other names, by the number of elements in the layer, or in the model. For quantised values two to eight
    bits count as an element.
    """
    unruled = {problem.parameter for problem in plan.problems if problem.code == "BU103"}
    if not unruled:
        return {}
    found: Found = {}
    matrices, parameters = _unread(plan, unruled), _by_place(plan, unruled)
    for place in matrices.keys() & parameters.keys():
        _add(found, matrices.pop(place), parameters.pop(place))
    _match(plan, matrices, parameters, found)
    for parameter, names in plan.requests:  # a tensor of the parameter's own name may belong to another parameter
        for name in names if parameter in unruled else ():
            found.setdefault(name, set()).add(parameter)
    _match(plan, matrices, _by_place(plan, unruled.difference(*found.values())), found)
    return found


def rule_advice(plan: Plan, problems: Iterable[Problem], found: Mapping[str, set[str]]) -> tuple[str, tuple[str, ...]]:
    """The advice for parameters without a rule, and the tensors that their rule would read."""
    parameters = {problem.parameter for problem in problems}
    names = tuple(name for name in plan.headers if found.get(name, set()) & parameters) if found else ()
    if not names:
        return "", ()
    parts = dict.fromkeys(part for each in parts_of(names).values() for part in each)
    how = (
        f"; a rule reads what is stored as {', '.join(f'`{part}`' for part in parts)} by its plain name"
        if parts
        else ""
    )
    return f"add a rule that reads {listed(names)}{how}", names


def _match(plan: Plan, matrices: dict[Place, list[_Matrix]], parameters: dict[Place, list[str]], found: Found) -> None:
    """Moves groups with equal numbers of elements to `found`."""
    for key in (_module, _layer, _model, _module_with_biases):
        groups, readers = _grouped(matrices, key), _grouped(parameters, key)
        for group in groups.keys() & readers.keys():
            some = [matrix for place in groups[group] for matrix in matrices[place]]
            theirs = [parameter for place in readers[group] for parameter in parameters[place]]
            if _fits(some, sum(math.prod(plan.signature[p].storage[0]) for p in theirs)):
                _add(found, some, theirs)
                for place in groups[group]:
                    del matrices[place]
                for place in readers[group]:
                    del parameters[place]


def _add(found: Found, matrices: Iterable[_Matrix], parameters: Iterable[str]) -> None:
    for matrix in matrices:
        for info in matrix.tensors:
            found.setdefault(info.name, set()).update(parameters)


def _fits(matrices: Sequence[_Matrix], elements: int) -> bool:
    """Whether the matrices can hold this many elements."""
    plain = sum(matrix.size for matrix in matrices if not matrix.quantised)
    bits, left = sum(matrix.size for matrix in matrices if matrix.quantised), elements - plain
    return left == bits == 0 or (left > 0 and any(bits == left * each for each in BITS))


def _unread(plan: Plan, unruled: set[str]) -> dict[Place, list[_Matrix]]:
    """The tensors that no rule reads, by place: the experts of a layer share one."""
    bits = {name: total_bits(plan.headers[name]) for name in plan.unread}
    for name, read in partly_read(plan).items():
        if name not in plan.cut:
            bits[name] = total_bits(plan.headers[name]) - read
    for entry, value, share in half_used(plan):
        for nest in (nest for region in value.inputs for nest in region.nests):
            info = entry.sources[nest.source]
            if isinstance(info, TensorInfo):
                bits[info.name] = round(total_bits(info) * (1 - share))
    parts = parts_of(bits)
    of_parts = {name for each in parts.values() for name in each.values()}
    matrices: dict[Place, list[_Matrix]] = {}
    for plain, each in parts.items():
        with_plain = plain in bits or plan.required.get(plain) in unruled
        infos = tuple(plan.headers[name] for name in (*each.values(), *([plain] if with_plain else ())))
        size = max(bits.get(info.name, total_bits(info)) for info in infos)
        matrix = _Matrix(infos, quantised=True, size=size)
        matrices.setdefault(_place(plan, plain), []).append(matrix)
    for name, count in bits.items():
        if name not in of_parts and name not in parts:
            info = plan.headers[name]
            matrix = _Matrix((info,), quantised=False, size=count * math.prod(info.shape) // (total_bits(info) or 1))
            matrices.setdefault(_place(plan, name), []).append(matrix)
    return matrices


def _by_place(plan: Plan, parameters: Iterable[str]) -> dict[Place, list[str]]:
    places: dict[Place, list[str]] = {}
    for parameter in parameters:
        places.setdefault(_place(plan, parameter), []).append(parameter)
    return places


def _place(plan: Plan, name: str) -> Place:
    steps = name.removeprefix(plan.prefix).split(".")
    layer = next((at for at, step in enumerate(steps) if step.isdecimal()), len(steps))
    steps = [step for at, step in enumerate(steps) if at <= layer or not step.isdecimal()]
    if steps[-1] == "weight" and len(steps) > 1:
        del steps[-1]
    elif steps[-1] == "bias" and len(steps) > 1:
        steps[-2:] = [f"{steps[-2]}_bias"]
    return ".".join(steps[:-1]), steps[-1]


def _module(place: Place) -> object:
    """The group whose elements are summed; biases are separate, because a quantised matrix has plain ones."""
    return place[0], place[1].endswith("_bias")


def _module_with_biases(place: Place) -> object:
    """The module alone: a parameter that is no bias may be stored under a name that ends like one."""
    return place[0]


def _layer(place: Place) -> object:
    """The layer by its number: its name may differ, as `h.3` and `layers.3`."""
    return next((step for step in place[0].split(".") if step.isdecimal()), ""), place[1].endswith("_bias")


def _model(place: Place) -> object:
    return place[1].endswith("_bias")


def _grouped(places: Iterable[Place], key: Callable[[Place], object]) -> dict[object, list[Place]]:
    groups: dict[object, list[Place]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return groups
