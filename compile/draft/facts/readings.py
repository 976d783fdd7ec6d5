"""The possible storage layouts of a tensor, as rules; the checker proves which are valid.

A reading is the text of its rules: the proved text is written to the draft. Rules are Python expressions over S, cat,
stack and the config; `split` separates the parts of a fused tensor. An expression is evaluated without builtins; the
only names of a checkpoint in it are those that `quoted` wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup.adapters.algebra.expr import S, cat, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.plan import make_plan
from bringup.compile.check.checker import check
from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.quoted import quoted
from bringup.compile.draft.facts.roles import Tensors
from bringup.compile.draft.facts.words import EXPERT_MLP, PARAMETERS, PLAIN_MLP
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.core.axes import AxesError
from bringup.graphs.core.signature import Signature
from bringup.spec import Shape, TensorInfo

DEFAULTS = ("out in", "vocab m")


@dataclass(frozen=True, slots=True)
class Reading:
    """Rules by the pattern of their parameter, and a description of the layout."""

    meaning: str
    rules: Mapping[str, str]


@dataclass(slots=True)
class Slot:
    """Tensors that are read together, all their readings, and the valid ones, of which the first is in the draft."""

    tensors: Tensors
    readings: list[Reading]
    proved: list[Reading] = field(default_factory=list[Reading])


def slots_of(facts: Facts) -> Iterator[Slot]:
    """Every tensor with a role, and its readings, in the order of the graph's parts."""
    found = facts.roles.found
    for role in ("embed", "norm", "norm_1", "norm_2", "norm_3", "norm_4", "q_norm", "k_norm", "router"):
        for tensors in (found[key] for key in ((role, "weight"), (role, "bias")) if key in found):
            target = PARAMETERS[role].format(p=tensors.p, L="{L}")
            if role == "router" and len(tensors.shape) == 2:
                yield _matrix(tensors, target)
            else:
                yield Slot(tensors, [Reading("as stored", {target: _s(tensors)})])
    for role in ("q", "k", "v", "o"):
        for tensors in (found[key] for key in ((role, "weight"), (role, "bias")) if key in found):
            target = PARAMETERS[role].format(p=tensors.p, L="{L}")
            yield _rotated(facts, tensors, target, role) if role in "qk" else _matrix(tensors, target)
    for key in (("qkv", "weight"), ("qkv", "bias")):
        if key in found:
            yield _qkv(facts, found[key])
    yield from _mlp(facts)
    if ("head", "weight") in found:
        head, embed = found["head", "weight"], found.get(("embed", "weight"))
        text = f"tied({_s(head)}, {_s(embed, 'vocab m')}, when=config.tied_head)" if embed else _s(head)
        yield Slot(head, [Reading("out in", {"lm_head.weight": text})])
    elif ("embed", "weight") in found:
        embed = found["embed", "weight"]
        text = f'tied(S("lm_head.weight"), {_s(embed, "vocab m")}, when=config.tied_head)'
        yield Slot(embed, [Reading("tied", {"lm_head.weight": text})])


def _s(tensors: Tensors, axes: str = "") -> str:
    return f"S({tensors.quoted}, {quoted(axes)})" if axes else f"S({tensors.quoted})"


def _matrix(tensors: Tensors, target: str) -> Slot:
    """A matrix that torch's Linear stores, or its transpose (Conv1D); a bias has one reading."""
    readings = [Reading("out in", {target: _s(tensors)})]
    if tensors.p == "weight":
        readings.append(Reading("in out", {target: _s(tensors, "in out")}))
    return Slot(tensors, readings)


def _rotated(facts: Facts, tensors: Tensors, target: str, role: str) -> Slot:
    """Queries and keys: their rows are in the order in which rope rotates them, halves or pairs."""
    slot, heads = _matrix(tensors, target), {"q": "h", "k": "g"}[role]
    partial = rotates_part(facts)
    if facts.sizes.d % 2 or facts.roles.has("q_norm") or (partial and facts.hints.pairs is not True):
        return slot
    rest = " m" if tensors.p == "weight" else ""
    rows, halves = f"({heads} pair two){rest}", f"({heads} d:(two pair)){rest}"
    sizes = "pair=config.head_dim // 2, two=2"
    text = f'S({tensors.quoted}, "{rows}", {sizes}).mv("{rows} -> {halves}", {sizes})'
    if partial:
        whole = f'S({tensors.quoted}, "({heads} d){rest}", d=config.head_dim)'
        whole += f'.mv("({heads} d){rest} -> {heads} d{rest}", d=config.head_dim)'
        turned = "config.rope.channels(config.head_dim)"
        parts = f'{whole}.split("d", {turned}, config.head_dim - {turned})'
        back = f'.mv("{heads} (pair two){rest} -> {heads} d:(two pair){rest}", two=2)'
        text = f'cat({parts}[0]{back}, {parts}[1], axis="d").mv("{heads} d{rest} -> ({heads} d){rest}")'
    pairs = Reading("rope rotates pairs of channels", {target: text})
    slot.readings[0] = Reading("rope rotates halves of a head", slot.readings[0].rules)
    slot.readings.insert(0 if facts.hints.pairs else 1, pairs)
    return slot


def rotates_part(facts: Facts) -> bool:
    """Whether rope rotates a part of a head's channels."""
    group: Any = facts.raw.get("rope_parameters")
    tables: list[Mapping[str, Any]] = [group if isinstance(group, Mapping) else {}, facts.raw]
    return any(table.get("partial_rotary_factor") not in (None, 1) for table in tables)


def _qkv(facts: Facts, tensors: Tensors) -> Slot:
    """q, k and v in one tensor: concatenated, or head by head, or for each key head with its queries."""
    rest = " m" if tensors.p == "weight" else ""
    sizes = "h=config.num_heads, g=config.num_kv_heads, d=config.head_dim"
    widths = "config.num_heads * config.head_dim, *(config.num_kv_heads * config.head_dim,) * 2"
    side = [
        f'S({tensors.quoted}, "out:(h d | g d | g d){rest}", {sizes}).split("out", {widths})[{at}]' for at in range(3)
    ]
    grouped = [_grouped(tensors, rest, part) for part in range(3)]
    readings = [Reading("q, then k, then v", _three(tensors, side))]
    if facts.sizes.h == facts.sizes.g:
        each = [
            f'S({tensors.quoted}, "({n} t d){rest}", t=3).mv("({n} t d){rest} -> t ({n} d){rest}").at("t", {at})'
            for at, n in enumerate("hgg")
        ]
        readings.append(Reading("each head's q, k and v", _three(tensors, each)))
    elif facts.sizes.g > 1:  # with one key head this is the first reading
        readings.append(Reading("each key head's queries, its key, its value", _three(tensors, grouped)))
    if qkv_order(facts):
        readings.reverse()
    if tensors.p == "weight":
        flipped = [text.replace(f'{rest}"', '"', 1) for text in side]
        flipped = [text.replace('"out:', '"m out:', 1) for text in flipped]
        readings.append(Reading("q, then k, then v; in out", _three(tensors, flipped)))
    return Slot(tensors, readings)


def qkv_order(facts: Facts) -> bool:
    """Whether a hint shows that q, k and v of one tensor alternate by head, or by key head."""
    return facts.hints.by_head if facts.sizes.h == facts.sizes.g else facts.hints.by_group and facts.sizes.g > 1


def _grouped(tensors: Tensors, rest: str, part: int) -> str:
    """q, k or v if rows are grouped by key head, each with its own queries first."""
    n = "config.num_heads // config.num_kv_heads"
    widths = f"{n}, 1, 1"
    back = f'.mv("g n d{rest} -> (h:(g n) d){rest}")' if part == 0 else f'.mv("g n d{rest} -> (g n d){rest}")'
    sizes = f"n={n} + 2, d=config.head_dim"
    whole = f'S({tensors.quoted}, "(g n d){rest}", {sizes}).mv("(g n d){rest} -> g n d{rest}", {sizes})'
    if part:
        return f'{whole}.at("n", {n} + {part - 1}).mv("g d{rest} -> (g d){rest}")'
    return f'{whole}.split("n", {widths})[0]{back}'


def _three(tensors: Tensors, texts: Iterable[str]) -> dict[str, str]:
    targets = [PARAMETERS[role].format(p=tensors.p, L="{L}") for role in "qkv"]
    return dict(zip(targets, texts, strict=True))


def _mlp(facts: Facts) -> Iterator[Slot]:
    found = facts.roles.found
    if facts.routing:
        tensors = found["router_bias", ""]
        yield Slot(tensors, [Reading("as stored", {PARAMETERS["router_bias"]: _s(tensors)})])
    yield from _products(facts, facts.mlp)
    if facts.dense:
        yield from _products(facts, facts.dense, "dense_")
    if facts.shared:
        roles = ("shared_gate", "shared_up", "shared_down", "shared_router")
        for role, tensors in ((role, found[role, "weight"]) for role in roles if (role, "weight") in found):
            yield _matrix(tensors, PARAMETERS[role].format(p="weight", L="{L}"))


def _products(facts: Facts, kind: str, before: str = "") -> Iterator[Slot]:
    """The matrices of an MLP of a kind, whose roles begin with `before`."""
    found, experts = facts.roles.found, kind == "experts"
    names = EXPERT_MLP if experts else PLAIN_MLP if kind == "plain" else PARAMETERS
    for role in ("gate", "up", "down"):
        keys = [(before + role, p) for p in ("weight", "bias", "")]
        for tensors in (found[key] for key in keys if key in found):
            target = names[role].replace("{p}", tensors.p)
            if not experts:
                yield _matrix(tensors, target)
                continue
            axes, flipped = ("m f", "f m") if role == "down" else ("f m", "m f")
            yield Slot(tensors, [
                Reading("out in", {target: _experts(facts, tensors, axes)}),
                Reading("in out", {target: _experts(facts, tensors, flipped)}),
            ])  # fmt: skip
    keys = [(f"{before}gate_up", p) for p in ("weight", "bias", "")]
    for tensors in (found[key] for key in keys if key in found):
        yield _gate_up(facts, tensors, names)


def _experts(facts: Facts, tensors: Tensors, axes: str) -> str:
    """A tensor for each expert, or all experts of a layer in one."""
    if "{E}" in tensors.pattern:
        count = "config.routing.experts" if facts.routing else "config.num_experts"
        return f'stack(S({tensors.quoted}, "{axes}"), over="E", n={count})'
    return f'S({tensors.quoted}, "e {axes}")'


def _gate_up(facts: Facts, tensors: Tensors, names: Mapping[str, str]) -> Slot:
    targets = [names[role].replace("{p}", tensors.p) for role in ("gate", "up")]
    experts = names is EXPERT_MLP
    e, rest = ("e " if experts else ""), (" m" if tensors.p != "bias" else "")
    f = "config.expert_ffn" if experts else "config.ffn"
    halves = [f'S({tensors.quoted}, "{e}out:(f | f){rest}", f={f}).split("out", {f}, {f})[{at}]' for at in (0, 1)]
    turns = [
        f'S({tensors.quoted}, "{e}(f two){rest}", two=2).mv("{e}(f two){rest} -> two {e}f{rest}").at("two", {at})'
        for at in (0, 1)
    ]
    readings = [
        Reading(meaning, dict(zip(targets, texts, strict=True)))
        for meaning, texts in (
            ("the gate, then up", halves), ("up, then the gate", halves[::-1]),
            ("a row of the gate, a row of up, and so on", turns),
            ("a row of up, a row of the gate, and so on", turns[::-1]),
        )
    ]  # fmt: skip
    if facts.hints.meaning and facts.hints.meaning.gate_first is False:
        readings = [readings[1], readings[0], *readings[2:]]
    if experts:
        flipped = [f'S({tensors.quoted}, "e m out:(f | f)", f={f}).split("out", {f}, {f})[{at}]' for at in (0, 1)]
        readings.append(Reading("the gate, then up; in out", dict(zip(targets, flipped, strict=True))))
    return Slot(tensors, readings)


def prove(
    slots: list[Slot], facts: Facts, signature: Signature, config: Any, headers: Mapping[str, TensorInfo]
) -> None:
    """Fills `proved`: the readings that the checker accepts, on all layers, every element of the tensors read once."""
    for slot in slots:
        slot.proved = [reading for reading in slot.readings if _holds(reading, slot, facts, signature, config, headers)]
    everything = {pattern: text for slot in slots if slot.proved for pattern, text in slot.proved[0].rules.items()}
    for slot in (slot for slot in slots if len(slot.proved) > 1):
        refuted = [
            reading
            for reading in slot.proved
            if _odd(everything | dict(reading.rules), facts, signature, config, headers)
        ]
        slot.proved = [reading for reading in slot.proved if reading not in refuted] or slot.proved


def without_rule(slots: list[Slot], facts: Facts, signature: Signature, config: Any) -> dict[str, Shape]:
    """The parameters, by pattern, for which the draft has no reading, proved or not."""
    readings = {pattern: text for slot in slots for each in slot.readings for pattern, text in each.rules.items()}
    adapter = adapter_from(readings, facts, config)
    lacking = [parameter for name, parameter in signature.items() if not any(adapter.matching(name))]
    return {re.sub(r"(?<=\.)\d+(?=\.)", "{L}", each.name): each.storage[0] for each in lacking}


def adapter_from(rules: Mapping[str, str], facts: Facts, config: Any) -> Adapter:
    """The adapter of the texts of rules."""
    adapter = Adapter(facts.name, defaults=DEFAULTS, prefix=facts.roles.prefix)
    names: dict[str, Any] = {"__builtins__": {}, "S": S, "cat": cat, "stack": stack, "tied": tied, "config": config}
    for pattern, text in rules.items():
        adapter[pattern] = eval(text, names)
    return adapter


def _holds(
    reading: Reading, slot: Slot, facts: Facts, signature: Signature, config: Any, headers: Mapping[str, TensorInfo]
) -> bool:
    """Whether the checker finds no error for a reading alone."""
    try:
        adapter = adapter_from(reading.rules, facts, config)
        own = Signature({name: p for name, p in signature.items() if any(adapter.matching(name))})
        if not own:
            return False
        report = check(make_plan(own, adapter, {name: headers[name] for name in slot.tensors.names}))
    except (AxesError, BringupError):
        return False
    return all(finding.severity is not Severity.ERROR for finding in report.findings)


def _odd(
    rules: Mapping[str, str], facts: Facts, signature: Signature, config: Any, headers: Mapping[str, TensorInfo]
) -> bool:
    """Whether the whole table reads a square matrix transposed, unlike the others of its layer (BU107)."""
    report = check(make_plan(signature, adapter_from(rules, facts, config), headers))
    return any(finding.code == "BU107" for finding in report.findings)
