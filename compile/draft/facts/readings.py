"""The possible storage layouts of a tensor, as rules; the checker proves which are valid.

A reading is the text of its rules: the proved text is written to the draft. Rules are Python expressions over S, cat,
stack and the config; `split` separates the parts of a fused tensor. An expression is evaluated without builtins; the
only names of a checkpoint in it are those that `quoted` wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bringup.adapters.algebra.expr import S, cat, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.plan import make_plan
from bringup.compile.check.checker import check
from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.fused import PAIRS, from_pairs, qkv_slot, rotates_part
from bringup.compile.draft.facts.mlp_readings import mlp_slots
from bringup.compile.draft.facts.roles import Tensors
from bringup.compile.draft.facts.slots import Reading, Slot, matrix, rule
from bringup.compile.draft.facts.words import LATENT, PARAMETERS
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.core.axes import AxesError
from bringup.graphs.core.signature import Signature
from bringup.spec import Shape, TensorInfo

DEFAULTS = ("out in", "vocab m")
AS_STORED = (
    "embed", "norm", "norm_1", "norm_2", "norm_3", "norm_4", "q_norm", "k_norm", "o_norm", "sinks", "mlp_norm",
    "router", "embed_norm",
)  # fmt: skip


def slots_of(facts: Facts) -> Iterator[Slot]:
    """Every tensor with a role, and its readings, in the order of the graph's parts."""
    found = facts.roles.found
    for role in AS_STORED:
        yield from _stored(facts, role)
    yield from _latent(facts)
    for role in ("q", "k", "v", "o") if not facts.sizes.latent else ():
        for tensors in (found[key] for key in ((role, "weight"), (role, "bias")) if key in found):
            target = PARAMETERS[role].format(p=tensors.p, L="{L}")
            yield _rotated(facts, tensors, target, role) if role in "qk" else matrix(tensors, target)
    for tensors in (found[key] for key in (("o_gate", "weight"), ("o_gate", "bias")) if key in found):
        yield matrix(tensors, PARAMETERS["o_gate"].format(p=tensors.p, L="{L}"))
    for key in (("qkv", "weight"), ("qkv", "bias")):
        if key in found:
            yield qkv_slot(facts, found[key])
    yield from mlp_slots(facts)
    yield from _head(facts)


def _stored(facts: Facts, role: str) -> Iterator[Slot]:
    """The tensors of a role that has one reading, or a matrix."""
    found = facts.roles.found
    for tensors in (found[key] for key in ((role, "weight"), (role, "bias"), (role, "")) if key in found):
        target = PARAMETERS[role].format(p=tensors.p, L="{L}")
        if role == "router" and len(tensors.shape) == 2:
            yield matrix(tensors, target)
        elif role in ("q_norm", "k_norm") and facts.hints.pairs and not rotates_part(facts):
            yield _norm_in_pairs(facts, tensors, target)
        elif role in ("q_norm", "k_norm") and "{E}" in tensors.stem:
            n = "config.num_heads" if role == "q_norm" else "config.num_kv_heads"
            text = f'stack(S({tensors.quoted}, "d"), over="E", n={n}, axis="heads").mv("heads d -> (heads d)")'
            yield Slot(tensors, [Reading("a tensor for each head", {target: text})])
        elif role in ("q_norm", "k_norm") and len(tensors.shape) == 2:
            text = f'S({tensors.quoted}, "heads d").mv("heads d -> (heads d)")'
            yield Slot(tensors, [Reading("as stored", {target: text})])
        else:
            yield Slot(tensors, [Reading("as stored", {target: rule(tensors)})])


def _latent(facts: Facts) -> Iterator[Slot]:
    """Multi-head latent attention: one matrix has the keys and values of each head."""
    if not facts.sizes.latent:
        return
    for (role, _), tensors in facts.roles.found.items():
        target = PARAMETERS.get(role, "").format(p=tensors.p, L="{L}")
        if role == "kv_b_proj":
            n, v = "config.plain_dim", "config.value_dim"
            whole = f'S({tensors.quoted}, "(h x) c", x={n} + {v}).mv("(h x) c -> h x c", h=config.num_heads)'
            parts = {
                target.replace("kv_b", f"{x}_b"): f'{whole}.split("x", {n}, {v})[{at}].mv("h {axis} c -> (h {axis}) c")'
                for at, (x, axis) in enumerate((("k", "n"), ("v", "v")))
            }
            yield Slot(tensors, [Reading("for each head, its key, its value", parts)])
        elif role in (*LATENT, "q", "o"):
            yield Slot(tensors, [Reading("as stored", {target: rule(tensors)})])


def _head(facts: Facts) -> Iterator[Slot]:
    """Learned positions, the head and its bias."""
    found = facts.roles.found
    if ("positions", "weight") in found and facts.learned:
        tensors = found["positions", "weight"]
        yield Slot(tensors, [Reading("as stored", {"model.positions.weight": rule(tensors, "position m")})])
    if ("head", "bias") in found:
        yield Slot(found["head", "bias"], [Reading("as stored", {"lm_head.bias": rule(found["head", "bias"])})])
    if ("head", "weight") in found:
        head, embed = found["head", "weight"], found.get(("embed", "weight"))
        text = f"tied({rule(head)}, {rule(embed, 'vocab m')}, when=config.tied_head)" if embed else rule(head)
        yield Slot(head, [Reading("out in", {"lm_head.weight": text})])
    elif ("embed", "weight") in found:
        embed = found["embed", "weight"]
        text = f'tied(S("lm_head.weight"), {rule(embed, "vocab m")}, when=config.tied_head)'
        yield Slot(embed, [Reading("tied", {"lm_head.weight": text})])


def _rotated(facts: Facts, tensors: Tensors, target: str, role: str) -> Slot:
    """Queries and keys: their rows are in the order in which rope rotates them, halves or pairs."""
    slot, heads = matrix(tensors, target), {"q": "h", "k": "g"}[role]
    partial = rotates_part(facts)
    if facts.sizes.d % 2 or (partial and (facts.hints.pairs is not True or facts.roles.has("q_norm"))):
        return slot
    rest = " m" if tensors.p == "weight" else ""
    rows = f"({heads} d){rest}" if partial else f"({heads} pair two){rest}"
    sizes = "d=config.head_dim" if partial else PAIRS
    text = from_pairs(f'S({tensors.quoted}, "{rows}", {sizes})', heads, rest, partial=partial)
    pairs = Reading("rope rotates pairs of channels", {target: text})
    slot.readings[0] = Reading("rope rotates halves of a head", slot.readings[0].rules)
    slot.readings.insert(0 if facts.hints.pairs else 1, pairs)
    return slot


def _norm_in_pairs(facts: Facts, tensors: Tensors, target: str) -> Slot:
    """A norm of queries or keys in the order of their channels: pairs, as their rows (`_rotated`)."""
    old, new = "(pair two)", "m:(two pair)"
    if len(tensors.shape) == 2:
        old, new = "heads (pair two)", "(heads d:(two pair))"
    elif tensors.shape != (facts.sizes.d,):
        old, new = "(heads pair two)", "m:(heads two pair)"
    sizes = "pair=config.head_dim // 2, two=2"
    text = f'S({tensors.quoted}, "{old}", {sizes}).mv("{old} -> {new}", {sizes})'
    return Slot(tensors, [Reading("rope rotates pairs of channels", {target: text})])


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
