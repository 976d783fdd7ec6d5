"""Forms: the numpy types in which a register is held.

The form of a register between basic blocks depends on its uses.
"""

from __future__ import annotations

from collections import Counter

from bringup.compile.ptx.assembly.flow import reads, writes
from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.assembly.operands import Register

WIDTH = {
    "bool": 1,
    **dict.fromkeys(("u16", "i16", "f16"), 16),
    **dict.fromkeys(("u32", "i32", "f32"), 32),
    **dict.fromkeys(("u64", "i64", "f64"), 64),
}
"""Bits of each form. The name of a form is that of a numpy type in the generated code."""

FORM = {
    "pred": "bool",
    **dict.fromkeys(("b8", "u8", "u16", "b16", "bf16"), "u16"),
    **dict.fromkeys(("s8", "s16"), "i16"),
    **dict.fromkeys(("u32", "f16x2", "bf16x2", "u16x2", "s16x2"), "u32"),
    **dict.fromkeys(("s32", "b32"), "i32"),
    **dict.fromkeys(("s64", "b64"), "i64"),
    "u64": "u64",
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
}
"""PTX type -> the form that its instructions use."""

UNSIGNED = {16: "u16", 32: "u32", 64: "u64"}
SIGNED = {16: "i16", 32: "i32", 64: "i64"}
_DEFAULT = {"pred": "bool", "16": "u16", "32": "i32", "64": "i64"}


def width_of(kind: str) -> int:
    """The bits of a register of a kind."""
    return 1 if kind == "pred" else int(kind)


def choose_forms(kernel: Kernel) -> list[str]:
    """The form of each register between blocks: the one that most instructions read and write."""
    votes = [Counter[str]() for _ in kernel.registers]
    for instruction in kernel.instructions:
        _vote(instruction, kernel, votes)
    forms = [
        max(counted, key=lambda form, counted=counted: counted[form]) if counted else _DEFAULT[kind]
        for (_, kind), counted in zip(kernel.registers, votes, strict=True)
    ]
    for _ in range(3):
        for instruction in kernel.instructions:
            _copy_floats(instruction, kernel, votes, forms)
    return forms


def _vote(instruction: Instruction, kernel: Kernel, votes: list[Counter[str]]) -> None:
    types = instruction.types
    if not types or instruction.base == "mov":
        return
    matrix = instruction.base in ("mma", "wgmma")
    source = types[-1] if instruction.base == "cvt" else types[0]
    for written, registers in ((True, writes(instruction)), (False, reads(instruction))):
        form = FORM.get(types[0] if written else source, "")
        for register in registers:
            bits = width_of(kernel.registers[register][1])
            if WIDTH.get(form) == bits and (not matrix or written):
                votes[register][form] += 1


def _copy_floats(instruction: Instruction, kernel: Kernel, votes: list[Counter[str]], forms: list[str]) -> None:
    """`mov` has no float type: if one register is float32, so is the other, unless its uses require another form."""
    match instruction.operands:
        case (Register(number=first), Register(number=second)) if instruction.base == "mov":
            pass
        case _:
            return
    if kernel.registers[first][1] != "32" or kernel.registers[second][1] != "32":
        return
    for one, other in ((first, second), (second, first)):
        if forms[other] == "f32" and set(votes[one]) <= {"f32"}:
            forms[one] = "f32"
