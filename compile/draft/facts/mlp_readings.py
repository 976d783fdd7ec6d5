"""The possible storage layouts of an MLP, of experts and of their router, as rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.roles import Tensors
from bringup.compile.draft.facts.slots import Reading, Slot, matrix, rule
from bringup.compile.draft.facts.words import EXPERT_MLP, PARAMETERS, PLAIN_MLP


def mlp_slots(facts: Facts) -> Iterator[Slot]:
    found = facts.roles.found
    if facts.routing:
        tensors = found["router_bias", ""]
        text = f'S({tensors.quoted}, "one e", one=1).at("one", 0)' if len(tensors.shape) == 2 else rule(tensors)
        yield Slot(tensors, [Reading("as stored", {PARAMETERS["router_bias"]: text})])
    yield from _products(facts, facts.mlp)
    if facts.dense:
        yield from _products(facts, facts.dense, "dense_")
    if facts.shared:
        roles = ("shared_gate", "shared_up", "shared_down", "shared_router")
        for role, tensors in ((role, found[role, "weight"]) for role in roles if (role, "weight") in found):
            yield matrix(tensors, PARAMETERS[role].format(p="weight", L="{L}"))
        if ("shared_gate_up", "weight") in found:
            names = {role: PARAMETERS[f"shared_{role}"] for role in ("gate", "up")}
            yield _gate_up(facts, found["shared_gate_up", "weight"], names, "config.shared_ffn")


def _products(facts: Facts, kind: str, before: str = "") -> Iterator[Slot]:
    """The matrices of an MLP of a kind, whose roles begin with `before`."""
    found, experts = facts.roles.found, kind == "experts"
    names = EXPERT_MLP if experts else PLAIN_MLP if kind == "plain" else PARAMETERS
    for role in ("gate", "up", "down"):
        keys = [(before + role, p) for p in ("weight", "bias", "")]
        for tensors in (found[key] for key in keys if key in found):
            target = _target(names, role, tensors)
            if not experts:
                yield matrix(tensors, target)
                continue
            axes, flipped = ("m f", "f m") if role == "down" else ("f m", "m f")
            if tensors.p == "bias":
                axes = flipped = axes.split()[0]
            readings = [
                Reading("out in", {target: _experts(facts, tensors, axes)}),
                Reading("in out", {target: _experts(facts, tensors, flipped)}),
            ]
            meaning = facts.hints.meaning
            stacked = "{E}" not in tensors.pattern
            if axes == flipped or (stacked and meaning and meaning.experts_in_out):
                readings = readings[1:]
            yield Slot(tensors, readings)
    keys = [(f"{before}gate_up", p) for p in ("weight", "bias", "")]
    for tensors in (found[key] for key in keys if key in found):
        yield _gate_up(facts, tensors, names)


def _experts(facts: Facts, tensors: Tensors, axes: str) -> str:
    """A tensor for each expert, or all experts of a layer in one."""
    if "{E}" in tensors.pattern:
        count = "config.routing.experts" if facts.routing else "config.num_experts"
        return f'stack(S({tensors.quoted}, "{axes}"), over="E", n={count})'
    return f'S({tensors.quoted}, "e {axes}")'


def _gate_up(facts: Facts, tensors: Tensors, names: Mapping[str, str], f: str = "config.ffn") -> Slot:
    experts = names is EXPERT_MLP
    targets = [_target(names, role, tensors) for role in ("gate", "up")]
    e, rest = ("e " if experts else ""), (" m" if tensors.p != "bias" else "")
    f = "config.expert_ffn" if experts else f
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
        transposed = [
            f'S({tensors.quoted}, "e m (f two)", two=2).mv("e m (f two) -> two e f m", two=2).at("two", {at})'
            for at in (0, 1)
        ]
        readings.append(Reading("the gate, then up; in out", dict(zip(targets, flipped, strict=True))))
        readings.append(Reading("a row of the gate, a row of up; in out", dict(zip(targets, transposed, strict=True))))
    meaning = facts.hints.meaning
    if meaning and meaning.gate_turns:  # the code states the order
        own = "in out" if experts and meaning.experts_in_out and tensors.p != "bias" else "and so on"
        readings = [each for each in readings if each.meaning.startswith("a row of the gate") and own in each.meaning]
    return Slot(tensors, readings)


def _target(names: Mapping[str, str], role: str, tensors: Tensors) -> str:
    """The parameter of a role; the bias of experts is a parameter of its own."""
    bias = "_bias" if names is EXPERT_MLP and tensors.p == "bias" else ""
    return names[role].replace("{p}", tensors.p) + bias
