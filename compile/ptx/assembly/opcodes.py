"""Which instructions are supported.

An instruction is supported only if all of its modifiers and operands are in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from bringup.compile.ptx.assembly.opcode_table import TABLE, WORDS
from bringup.compile.ptx.assembly.operands import (
    Address,
    Blank,
    Immediate,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Target,
    Vector,
    registers_in,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Modifiers of which an instruction has exactly one (`required`), or at most one."""

    choices: frozenset[str]
    required: bool


@dataclass(frozen=True, slots=True)
class Form:
    """One line of the table."""

    base: str
    groups: tuple[Group, ...]
    slots: tuple[str, ...]


def _form(line: str) -> Form:
    head, _, operands = line.partition(":")
    while operands.startswith(":"):  # the `::` of a modifier
        more, _, operands = operands[1:].partition(":")
        head += f"::{more}"
    base, _, rest = head.strip().partition(" ")
    groups: list[Group] = []
    for part in rest.replace("(", "\n(").replace("[", "\n[").split("\n")[1:]:
        words = [WORDS.get(word, (word,)) for word in part.strip()[1:-1].split()]
        groups.append(Group(frozenset(one for many in words for one in many), part[0] == "("))
    return Form(base, tuple(groups), tuple(operands.split()))


@cache
def forms() -> dict[str, tuple[Form, ...]]:
    """The lines of the table, by opcode."""
    found: dict[str, list[Form]] = {}
    for line in filter(None, TABLE.splitlines()):
        form = _form(line)
        found.setdefault(form.base, []).append(form)
    return {base: tuple(several) for base, several in found.items()}


def _accepts(form: Form, modifiers: tuple[str, ...]) -> bool:
    """Whether each modifier belongs to a different group, and every required group has one."""
    free = list(form.groups)
    for modifier in modifiers:
        group = next((each for each in free if modifier in each.choices), None)
        if group is None:
            return False
        free.remove(group)
    return not any(group.required for group in free)


@cache
def _candidates(opcode: tuple[str, ...]) -> tuple[Form, ...]:
    return tuple(form for form in forms().get(opcode[0], ()) if _accepts(form, opcode[1:]))


_SOURCES = (Immediate, Special, Symbol)


def _fits(slot: str, operand: Operand) -> bool:
    """Whether an operand has the form that a slot requires."""
    match slot[0]:
        case "d":
            return isinstance(operand, Blank) or (isinstance(operand, Register) and not operand.negated)
        case "D" | "r":
            vector = isinstance(operand, Vector) and all(_fits("d", item) for item in operand.items)
            return vector or (slot == "D" and _fits("d", operand))
        case "e" | "E":
            pair = isinstance(operand, Pair) and _fits("d", operand.first) and _fits("d", operand.second)
            return pair or (slot == "E" and _fits("d", operand))
        case "s":
            return isinstance(operand, _SOURCES) or (isinstance(operand, Register) and not operand.negated)
        case "S":
            vector = isinstance(operand, Vector) and all(_fits("s", item) for item in operand.items)
            return vector or _fits("s", operand)
        case "c":
            return isinstance(operand, Register | Immediate)
        case "m":
            return isinstance(operand, Address)
        case "i":
            return isinstance(operand, Immediate) and not operand.text.lower().startswith(("0f", "0d"))
        case "_":
            return isinstance(operand, Blank)
        case _:
            return isinstance(operand, Target | Symbol)


def _takes(form: Form, operands: tuple[Operand, ...]) -> bool:
    least = sum(not slot.endswith("?") for slot in form.slots)
    count_fits = least <= len(operands) <= len(form.slots)
    return count_fits and all(_fits(slot, operand) for slot, operand in zip(form.slots, operands, strict=False))


def slots_of(opcode: tuple[str, ...], operands: tuple[Operand, ...]) -> tuple[str, ...] | None:
    """The role of each operand, from the first line of the table that matches the instruction. None: unsupported."""
    form = next((each for each in _candidates(opcode) if _takes(each, operands)), None)
    return None if form is None else tuple(slot[0] for slot in form.slots[: len(operands)])


def reason(opcode: tuple[str, ...]) -> str:
    """Why an instruction without slots is unsupported."""
    base, *modifiers = opcode
    if base not in forms():
        return f"unknown opcode {base}"
    known = {modifier for form in forms()[base] for group in form.groups for modifier in group.choices}
    unknown = [f".{modifier}" for modifier in modifiers if modifier not in known]
    if unknown:
        return f"unknown modifier {', '.join(unknown)}"
    return "these operands" if _candidates(opcode) else "this combination of modifiers"


def written(slots: tuple[str, ...], operands: tuple[Operand, ...]) -> Iterator[int]:
    """The registers that an instruction writes."""
    for slot, operand in zip(slots, operands, strict=True):
        if slot in "dDeEr":
            yield from registers_in(operand)


def read(slots: tuple[str, ...], operands: tuple[Operand, ...]) -> Iterator[int]:
    """The registers that its operands read."""
    for slot, operand in zip(slots, operands, strict=True):
        if slot not in "dDeE":
            yield from registers_in(operand)
