"""The text of a drafted adapter: the rules that were proved, and other possible rules as questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.fused import PAIRED, qkv_order, rotates_part
from bringup.compile.draft.facts.questions import comment, listed_layers
from bringup.compile.draft.facts.quoted import quoted
from bringup.compile.draft.facts.readings import DEFAULTS
from bringup.compile.draft.facts.slots import Slot
from bringup.spec import Shape

NAMES = ("Adapter", "S", "cat", "stack", "tied")  # of bringup.adapters, in rules


def adapter_text(facts: Facts, slots: Sequence[Slot], lacking: Mapping[str, Shape]) -> str:
    """One rule for each parameter; rules that differ in weight and bias only are one. Tensors without a valid rule are
    questions, and so are the parameters of `lacking`, which no tensor matches."""
    table, lines = "adapter" if facts.name in (*NAMES, "config") else facts.name, list[str]()
    for slot in slots:
        if not slot.proved:
            tried = "; ".join(reading.meaning for reading in slot.readings)
            some = _some_layers(facts, slot)
            question = facts.ask(f"`{slot.tensors.pattern}` {list(slot.tensors.shape)}: no rule holds ({tried}){some}")
            lines.append(comment(question, "    "))
            continue
        lines += [text for text in _questions(facts, slot, slots) if text not in lines]
        lines += [_rule(f"{table}[{quoted(pattern)}]", text) for pattern, text in slot.proved[0].rules.items()]
    for pattern, shape in lacking.items():
        text = f"parameter `{pattern}` {list(shape)}: no tensor has its name or shape; write a rule"
        lines.append(comment(facts.ask(text), "    "))
    for tensors, why in facts.roles.buffers:
        lines.append(f"    {table}.drop({tensors.quoted}, why={quoted(why)})\n")
    for layer, count in facts.roles.after.items():
        text = f"`{layer}*`: {count} tensors of a layer after the last, which `num_hidden_layers` excludes: dropped"
        lines.append(comment(facts.ask(text), "    "))
        why = "a layer after the last"
        lines.append(f"    {table}.drop({quoted(f'{layer}{{rest:**}}')}, why={quoted(why)})\n")
    for tensors in facts.roles.rest:
        text = f"`{tensors.pattern}` {list(tensors.shape)}: no part is known that has it; write a rule, or drop it"
        lines.append(comment(facts.ask(text), "    "))
    body = _together("".join(lines))
    names = [name for name in NAMES if name == "Adapter" or f"{name}(" in body]
    prefix = f", prefix={quoted(facts.roles.prefix)}" if facts.roles.prefix else ""
    return (
        f'"""{facts.title} as published: rules are proved by names, shapes and axes; `# ?` has other readings."""\n\n'
        f"from __future__ import annotations\n\nfrom bringup.adapters import {', '.join(names)}\n\n"
        f"from .{facts.name}_graph import {facts.title}Config\n\n\n"
        f"def adapter(config: {facts.title}Config) -> Adapter:\n"
        f"    {table} = Adapter({quoted(facts.name)}, defaults={quoted(DEFAULTS)}{prefix})\n{body}    return {table}\n"
    )


def _some_layers(facts: Facts, slot: Slot) -> str:
    """The layers that have a tensor, if others lack it: `layer` of the draft creates its module in all."""
    layers = slot.tensors.layers if slot.tensors.in_layers else frozenset[int]()
    if len(layers) in (0, facts.sizes.layers):
        return ""
    return f"; layers {listed_layers(layers)} alone have it: create its module in these"


def _rule(target: str, text: str) -> str:
    """An assignment; a long one has each step of the expression on a line."""
    line = f"    {target} = {text}\n"
    if len(line) <= 121:
        return line
    steps = re.split(r"(?<=[)\]])(?=\.(?:mv|split|at)\()|(?<=cat\()|(?<=, )(?=S\(|axis=)", text)
    return f"    {target} = (\n" + "".join(f"        {step.rstrip()}\n" for step in steps) + "    )\n"


def _questions(facts: Facts, slot: Slot, slots: Sequence[Slot]) -> Iterator[str]:
    """The questions on a tensor, as comments: other roles that its shape permits, other rules that are valid."""
    if slot.tensors.others:
        text = f"`{slot.tensors.pattern}`: its name is not known, its shape is that of several parts"
        yield comment(facts.ask(text, slot.tensors.role, *slot.tensors.others), "    ")
    if slot.tensors.role == "qkv" and facts.hints.pairs is not False and PAIRED not in slot.proved[0].meaning:
        pairs = "halves: the rows as they are", "pairs: rearrange q and k, (h pair two) -> (h d:(two pair))"
        yield comment(facts.ask("no rule was tried for how rope rotates q and k of one tensor", *pairs), "    ")
    in_pairs = facts.hints.pairs and rotates_part(facts) and facts.roles.has("q_norm")
    if slot.tensors.role in ("q", "k", "qkv") and in_pairs:
        text = "no rule was tried for pairs of a part of the channels that also have norms"
        yield comment(facts.ask(text), "    ")
    if len(slot.proved) < 2 or _answered(facts, slot):
        return
    text, same = f"`{slot.tensors.pattern}` {list(slot.tensors.shape)}: several readings hold", [slot]
    if slot.proved[0].meaning.startswith("rope"):
        text = "no shape shows how rope rotates; q and k alike"
        same = [each for each in slots if each.tensors.stem == slot.tensors.stem]  # a weight and its bias
    choices = [slot.proved[0].meaning]
    for meaning in (reading.meaning for reading in slot.proved[1:]):
        found = [reading for each in same for reading in each.proved if reading.meaning == meaning]
        choices.append(f"{meaning}: {', '.join(text for reading in found for text in reading.rules.values())}")
    question = facts.ask(text, *choices)  # one for q and k: each comment has the rules of its own tensor
    yield comment(replace(question, choices=tuple(choices)), "    ")


def _answered(facts: Facts, slot: Slot) -> bool:
    """Whether a hint decides between the remaining readings: the channel order of rope, the order of q, k and v."""
    if slot.tensors.role == "qkv":
        in_order = slot.tensors.module.rpartition(".")[2] in facts.hints.in_order
        in_order |= facts.hints.meaning is not None and facts.hints.meaning.in_order
        return qkv_order(facts) or (in_order and slot.proved[0].meaning.startswith("q, then k, then v"))
    if slot.tensors.role.endswith("gate_up") and facts.hints.meaning and facts.hints.meaning.gate_first is not None:
        return slot.proved[0].meaning in ("the gate, then up", "up, then the gate")
    return facts.hints.pairs is not None and all(reading.meaning.startswith("rope") for reading in slot.proved)


def _together(body: str) -> str:
    """A weight's rule and its bias's, if they differ in that word alone, as one rule of `{p:weight|bias}`."""
    lines = body.splitlines(keepends=True)
    for line in [line for line in lines if ".weight" in line]:
        twin = line.replace(".weight", ".bias")
        if twin in lines and line.count(".weight") == 2 and not line.lstrip().startswith("#"):
            target, _, source = line.partition("] = ")
            lines[lines.index(line)] = (
                target.replace(".weight", ".{p:weight|bias}") + "] = " + source.replace(".weight", ".{p}")
            )
            lines.remove(twin)
    return "".join(lines)
