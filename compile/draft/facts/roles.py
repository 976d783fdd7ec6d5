"""The role of each tensor of a checkpoint: by the words of its name, else by its shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bringup.compile.draft.facts.hints import Hints
from bringup.compile.draft.facts.quoted import quoted
from bringup.compile.draft.facts.sizes import Sizes
from bringup.compile.draft.facts.words import (
    ATTENTION,
    BUFFERS,
    IN_ATTENTION,
    IN_MLP,
    IN_SHARED,
    LATENT,
    MERGED,
    MLP,
    NORMS,
    OF_CLASSES,
    OF_NORMS,
    SHARED,
    TOP,
)
from bringup.spec import Shape, TensorInfo


@dataclass(slots=True)
class Tensors:
    """All tensors with the same name without numbers: `pattern` has {L} for the layer, and {E} for the expert.

    `names` are complete. `stem` is the name without its last word, `p` is weight or bias; `others` are roles that the
    shape permits too, if the name is not a known one. `last` is the name after the stem, such as `.weight` or `_bias`.
    `module` is the stem of the name in transformers' modules, by which a role is recognised.
    """

    stem: str
    p: str
    shape: Shape
    names: list[str]
    role: str = ""
    others: list[str] = field(default_factory=list[str])
    last: str = ""
    module: str = ""

    @property
    def pattern(self) -> str:
        return self.stem + self.last

    @property
    def quoted(self) -> str:
        """The pattern as a Python literal."""
        return quoted(self.pattern)

    @property
    def in_layers(self) -> bool:
        return "{L}" in self.stem

    @property
    def layers(self) -> frozenset[int]:
        """The numbers of the layers that have the tensor."""
        found = (re.search(r"(?<=\.)\d{1,9}(?=\.)", name) for name in self.names)
        return frozenset(int(number[0]) for number in found if number)


@dataclass(slots=True)
class Roles:
    """The tensors by role and by weight or bias; `rest` have no role, `buffers` are not weights. `prefix` is that of
    most names, which rules omit. `sparse`: the layers with experts, if others have an MLP, whose roles begin with
    `dense_`; empty otherwise. `after`: the layers after the last, with the number of their tensors."""

    prefix: str
    found: dict[tuple[str, str], Tensors]
    rest: list[Tensors]
    buffers: list[tuple[Tensors, str]]
    sparse: frozenset[int] = frozenset()
    after: dict[str, int] = field(default_factory=dict[str, int])

    def has(self, role: str, p: str = "weight") -> bool:
        return (role, p) in self.found


def roles_of(headers: Mapping[str, TensorInfo], sizes: Sizes, hints: Hints) -> Roles:
    """A role for every tensor whose name or shape shows one. Of several with the same role, the most certain has it."""
    prefix = _prefix(headers)
    roles = Roles(prefix, {}, [], [])
    unsure: list[Tensors] = []
    every = list(_by_name_pattern(_without_later_layers(headers, sizes, roles), prefix, hints))
    dense, roles.sparse = _dense(every, sizes, hints)
    for tensors in every:
        last = tensors.pattern.rpartition(".")[2]
        buffer = next((why for word, why in BUFFERS.items() if last == word), None)
        if buffer or (tensors.p == "bias" and tensors.last == ".bias" and len(tensors.shape) > 1):
            roles.buffers.append((tensors, buffer or "the causal mask"))
            continue
        tensors.role = ("dense_" if tensors.pattern in dense else "") + _by_name(tensors, hints)
        key = tensors.role, tensors.p
        if tensors.role and key not in roles.found and _fits(tensors, sizes, tensors.role):
            roles.found[key] = tensors
        else:
            unsure.append(tensors)
    # those with the fewest possible roles first, and weights before their biases
    for tensors in sorted(unsure, key=lambda each: (each.p == "bias", len(_free(each, sizes, roles)))):
        _by_shape(tensors, sizes, roles)
    return roles


def key_heads(headers: Mapping[str, TensorInfo], m: int, h: int, d: int) -> int:
    """The number of key heads by the shapes of all matrices of keys, or of q, k and v in one; 0 if they differ.

    `m` hidden, `h` query heads, `d` channels of a head.
    """
    found: set[int] = set()
    for name, info in headers.items():
        *words, p = name.split(".")
        if p != "weight" or len(info.shape) != 2 or m not in info.shape or not words:
            continue
        rows = info.shape[0] if info.shape[1] == m else info.shape[1]
        if words[-1] in ATTENTION["k"]:
            found.add(rows // d if rows % d == 0 else 0)
        elif words[-1] in ATTENTION["qkv"]:
            found.add((rows // d - h) // 2 if rows % d == 0 and (rows // d - h) % 2 == 0 else 0)
    heads = found.pop() if len(found) == 1 else 0
    return heads if heads > 0 and h % heads == 0 else 0


def _prefix(headers: Mapping[str, TensorInfo]) -> str:
    """The first word of most names, such as `model.`, if the names of layers begin with it."""
    for name in headers:
        found = re.match(r"((?:[A-Za-z_]\w*\.)+?)[A-Za-z_]\w*\.0\.", name)
        if found:
            return found[1]
    return ""


def _by_name_pattern(headers: Mapping[str, TensorInfo], prefix: str, hints: Hints) -> Iterator[Tensors]:
    """Tensors whose names differ in their numbers only, in the order of the file."""
    found: dict[tuple[str, Shape], Tensors] = {}
    for name, info in headers.items():
        pattern = _without_numbers(name.removeprefix(prefix))
        stem, _, last = pattern.rpartition(".")
        p = last if last in ("weight", "bias") and stem else ""
        if stem and len(info.shape) == 1 and f"{name.rpartition('.')[0]}.weight" not in headers:
            p = OF_NORMS.get(last, p)
        if last.endswith("_bias") and name.removesuffix("_bias") in headers:
            stem, p = pattern.removesuffix("_bias"), "bias"
        stem = stem if p else pattern
        last = pattern.removeprefix(stem)
        tensors = found.setdefault((pattern, tuple(info.shape)), Tensors(stem, p, tuple(info.shape), [], last=last))
        tensors.names.append(name)
    for tensors in found.values():
        tensors.module = _without_numbers(hints.in_modules(tensors.names[0]).removeprefix(prefix))
        tensors.module = tensors.module.removesuffix(tensors.last)
    yield from found.values()


def _without_numbers(name: str) -> str:
    """A name with a letter for each of its numbers: {L} for the first, {E} for the second."""
    letters = iter("LEABC")
    return re.sub(r"(?<=\.)\d+(?=\.)", lambda _: f"{{{next(letters, 'Z')}}}", name)


def _without_later_layers(headers: Mapping[str, TensorInfo], sizes: Sizes, roles: Roles) -> Mapping[str, TensorInfo]:
    """The tensors without those of layers after the last, which are counted in `after`: they predict further tokens."""
    found: dict[str, TensorInfo] = {}
    lists = {match[1] for name in headers if (match := re.match(r"(\D*\.)0\.", name))}
    for name, info in headers.items():
        match = re.match(r"(\D*\.)(\d{1,9})\.", name)
        if match and match[1] in lists and int(match[2]) >= sizes.layers:
            layer = match[0].removeprefix(roles.prefix)
            roles.after[layer] = roles.after.get(layer, 0) + 1
        else:
            found[name] = info
    return found


def _dense(every: list[Tensors], sizes: Sizes, hints: Hints) -> tuple[set[str], frozenset[int]]:
    """The patterns of the MLP in layers without experts, and the layers with experts; nothing unless each layer has
    either."""
    experts = [tensors for tensors in every if tensors.in_layers and _of_experts(tensors, sizes)]
    sparse = frozenset(number for tensors in experts for number in tensors.layers if number < sizes.layers)
    known = {id(tensors) for tensors in experts}
    others = [tensors for tensors in every if tensors.in_layers and id(tensors) not in known]
    found = [tensors for tensors in others if _by_name(tensors, hints) in ("gate", "up", "down", "gate_up")]
    layers = {frozenset(number for number in tensors.layers if number < sizes.layers) for tensors in found}
    dense = layers.pop() if len(layers) == 1 else frozenset[int]()
    if not sparse or not dense or sparse & dense or len(sparse) + len(dense) != sizes.layers:
        return set(), frozenset()
    return {tensors.pattern for tensors in found}, sparse


def _of_experts(tensors: Tensors, sizes: Sizes) -> bool:
    """Whether a tensor is of one routed expert, or of all."""
    words = tensors.module.split(".")
    if not sizes.e or _place(words[:-1], words[-1]) is not MLP:
        return False
    return "{E}" in words or "experts" in words or (len(tensors.shape) == 3 and tensors.shape[0] == sizes.e)


def _by_name(tensors: Tensors, hints: Hints) -> str:
    """The role by a name, '' for an unknown one."""
    words = [word for word in tensors.module.split(".") if not word.startswith("{")]
    if tensors.module.endswith("norms.{E}"):  # one for each head
        words = words[:-1]
    last = words[-1] if words else ""
    if not tensors.in_layers:
        return next((role for role, names in TOP.items() if last in names), "")
    place = _place(words[:-1], last)
    if place is NORMS and hints.meaning and last in hints.meaning.norm_roles:
        return hints.meaning.norm_roles[last]
    if place not in (NORMS, SHARED) and last in hints.roles and hints.roles[last] in place:
        return hints.roles[last]
    if last in hints.packed and place is not SHARED:
        return "qkv" if len(hints.packed[last]) == 3 else "gate_up"
    if place is MLP and hints.meaning and hints.meaning.routing and last == hints.meaning.routing.bias:
        return "router_bias"
    if place is SHARED:
        return next((role for role, names in SHARED.items() if last in names), "")
    tables = (place, NORMS) if place is not NORMS else (NORMS, ATTENTION, MLP)
    named = [last, *(f"{OF_CLASSES.sub('', last)}{end}" for end in ("_proj", "") if OF_CLASSES.search(last))]
    return next((role for name in named for table in tables for role, names in table.items() if name in names), "")


def _place(words: list[str], last: str) -> Mapping[str, tuple[str, ...]]:
    if any(part in word for word in (*words, last) for part in IN_SHARED):
        return SHARED
    for word in reversed(words):
        if any(part in word.lower() for part in IN_MLP):
            return MLP
        if any(part in word.lower() for part in IN_ATTENTION):
            return ATTENTION
    return NORMS


def _fits(tensors: Tensors, sizes: Sizes, role: str) -> bool:
    """Whether a tensor's shape is one of a role's, or its transpose; experts may be stacked."""
    stacked = len(tensors.shape) == (2 if tensors.p == "bias" else 3) and tensors.shape[0] == sizes.e
    shape = tensors.shape[1:] if stacked else tensors.shape
    if sizes.latent and role in (*LATENT, "q", "o"):
        return True  # several ranks and widths: a proof shows them
    if role == "positions":
        return len(shape) == 2 and shape[1] == sizes.m and tensors.p == "weight"
    allowed = sizes.shapes(role)
    if tensors.p == "bias":
        return any(shape == each[:1] for each in allowed)
    return any(shape in (each, each[::-1]) for each in allowed)


def _by_shape(tensors: Tensors, sizes: Sizes, roles: Roles) -> None:
    """Gives a tensor the first free role with its shape; the draft asks about the others."""
    free = _free(tensors, sizes, roles)
    tensors.role, tensors.others = (free[0] if free else ""), free[1:]
    if free:
        roles.found[free[0], tensors.p] = tensors
    else:
        roles.rest.append(tensors)


def _free(tensors: Tensors, sizes: Sizes, roles: Roles) -> list[str]:
    """The roles that a tensor's shape permits and no other tensor has.

    A bias has the role of its weight, and a tensor that is named a norm that of a norm. If one tensor is several
    matrices, no other tensor is one of these.
    """
    place = (*ATTENTION, *MLP, *NORMS) if tensors.in_layers else ("embed", "norm", "head")
    last = tensors.module.rpartition(".")[2].lower()
    if twins := {other.role for other in roles.found.values() if other.stem == tensors.stem}:
        place = tuple(twins)
    elif tensors.in_layers and ("norm" in last or last.startswith("ln")):
        place = ("q_norm", "k_norm", *NORMS) if _place(tensors.module.split("."), last) is ATTENTION else tuple(NORMS)
    taken = {part for merged, parts in MERGED.items() if roles.has(merged) for part in parts}
    taken |= {merged for merged, parts in MERGED.items() if any(roles.has(part) for part in parts)}
    possible = [role for role in place if tensors.p and role not in taken and (role, tensors.p) not in roles.found]
    return [role for role in possible if _fits(tensors, sizes, role)]
