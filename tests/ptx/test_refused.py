"""What the emulator does not run is refused, by name and line: no modifier, operand or directive is left out."""

from __future__ import annotations

import pytest

from bringup.compile import ptx
from bringup.compile.ptx.assembly.opcodes import Form, forms, slots_of
from bringup.compile.ptx.assembly.operands import (
    Address,
    Blank,
    Immediate,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from tests.ptx.lanes import text

OPERANDS: dict[str, Operand] = {
    "d": Register(0),
    "D": Register(0),
    "e": Pair(Register(0), Register(1)),
    "E": Pair(Register(0), Register(1)),
    "r": Vector((Register(0),)),
    "_": Blank(),
    "m": Address(Register(0)),
    "b": Symbol("L"),
    "s": Register(0),
    "S": Register(0),
    "c": Register(0, negated=True),
    "i": Immediate("1"),
}
WRITTEN = {"d": "%q0", "D": "%q0", "e": "%q0|%q1", "E": "%q0|%q1", "r": "{%q0}", "_": "_", "m": "[%q2]", "b": "L"}
WRITTEN |= {"s": "%q3", "S": "%q3", "c": "%p1", "i": "1"}
LINES = [(form.base, place, form) for several in forms().values() for place, form in enumerate(several)]
NAMES = [f"{base}{place}" for base, place, _ in LINES]


def opcode_of(form: Form) -> tuple[str, ...]:
    """One instruction that a line of the table takes."""
    return (form.base, *(min(group.choices) for group in form.groups if group.required))


@pytest.mark.parametrize(("base", "place", "form"), LINES, ids=NAMES)
def test_an_unknown_modifier_is_refused(base, place, form):
    """At every position, and twice the same one."""
    opcode = opcode_of(form)
    operands = tuple(OPERANDS[slot[0]] for slot in form.slots)
    assert slots_of(opcode, operands) is not None
    for position in range(1, len(opcode) + 1):
        for modifier in ("relu", "bogus", "approx2"):
            assert slots_of((*opcode[:position], modifier, *opcode[position:]), operands) is None
    assert slots_of(opcode, (*operands, Immediate("3"), Immediate("4"), Immediate("5"))) is None
    if len(opcode) > 1:
        repeated = (*opcode, opcode[-1])
        free = [group for group in form.groups if opcode[-1] in group.choices]
        assert len(free) > 1 or base in ("cvt", "mma", "wgmma") or slots_of(repeated, operands) is None


def variants(form: Form) -> list[tuple[str, ...]]:
    """Opcodes of a line of the table: each choice of each group once."""
    found = [opcode_of(form)]
    for varied in form.groups:
        for choice in sorted(varied.choices)[:40]:
            groups = [group for group in form.groups if group.required or group is varied]
            found.append((form.base, *(choice if group is varied else min(group.choices) for group in groups)))
    return found


def operand_text(slot: str, opcode: tuple[str, ...]) -> str:
    """An operand for a slot, with as many registers as the opcode has elements."""
    count = next((int(part[1]) for part in opcode if part in ("v2", "v4", "x1", "x2", "x4")), 1)
    if slot in "DSr" and (count > 1 or slot == "r"):
        return "{" + ", ".join(f"%q{number}" for number in range(count)) + "}"
    if slot == "m" and "tensor" in opcode:
        return "[%q2, {%r1, %r1}]"
    return "[p0]" if slot == "m" and opcode[:2] == ("ld", "param") else WRITTEN[slot]


@pytest.mark.parametrize(("base", "place", "form"), LINES, ids=NAMES)
def test_what_the_table_takes_is_translated(base, place, form):
    """Each modifier of each line: either it is translated, or refused with a reason."""
    registers = ".reg .b64 %q<9>; .reg .pred %p<3>; .reg .b32 %r<4>;"
    before = {"bra": "L:", "addc": "add.cc.u32 %r1, %r1, %r1;", "madc": "add.cc.u32 %r1, %r1, %r1;"}.get(base, "")
    for opcode in variants(form):
        operands = ", ".join(operand_text(slot[0], opcode) for slot in form.slots)
        try:
            ptx.Program(text(f"{before} {'.'.join(opcode)} {operands}; ret;", registers, 1))
        except ptx.Unsupported as error:
            refused = error
        else:
            continue
        assert refused.reason, opcode


def test_an_unsupported_instruction_names_its_lines():
    module = text(".loc 1 7 3\nadd.rm.f32 %r0, %r1, %r2;\nret;", ".reg .b32 %r<4>;").replace(
        ".address_size 64", '.address_size 64\n.file 1 "/somewhere/kernels.py"'
    )
    with pytest.raises(
        ptx.Unsupported, match=r"line 11 \(from kernels.py:7\): add.rm.f32 .*unknown modifier .rm"
    ) as error:
        ptx.Program(module)
    assert (error.value.line, error.value.source) == (11, "kernels.py:7")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("call foo, ();", "unknown opcode call"),
        ("mul.f32 %r0, %r1;", "these operands"),
        ("add.cc.u32 %r0, %r1, %r1; bra L; L: addc.u32 %r0, %r1, %r1;", "another basic block"),
        ("mov.u32 %r0, %pm0;", "special register"),
        ("bar.sync 17;", "barriers are numbered 0 to 15"),
        ("bar.sync %r0;", "these operands"),
        (".param .b32 x;", "this directive"),
        ("ld.param.b64 %q0, [p0+4];", "outside of parameter"),
        ("ld.global.v4.b32 {%r0, %r1}, [%q0];", "2 registers for 4 elements"),
        ("prmt.b32.f4e %r0, %r1, %r2, %r3;", "unknown modifier .f4e"),
        ("cvt.rn.f32.f32 %r0, %r1;", "combination"),
        ("min.xorsign.f32 %r0, %r1, %r2;", "combination"),
    ],
)
def test_refusals(body, reason):
    with pytest.raises(ptx.Unsupported, match=reason):
        ptx.Program(text(f"{body} ret;", ".reg .b32 %r<4>; .reg .b64 %q<2>;", 1))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("", "no .target"),
        (".target sm_80\n", "found 0"),
        (text("ret;") + ".visible .entry other() { ret; }", "found 2"),
        (text("add.s32 %r0, %r1, %r1; ret;"), "register %r0 is not declared"),
        (text("bra L; ret;"), "undefined label L"),
        (text("L: L: ret;"), "duplicate label L"),
        (text("@%p1 ret;"), "predicate %p1 is not declared"),
        (text("{ ret;").replace("\n}\n", "\n}}\n")[:-2], "not closed"),
        (text("ret; mov"), "a statement has no end"),
        (text("ld.global.b32 %r0, [nothing]; ret;", ".reg .b32 %r<2>;"), "nothing is not declared"),
        (text("1 2 3; ret;"), "not an instruction"),
    ],
)
def test_malformed_text(module, message):
    with pytest.raises(ptx.Malformed, match=message):
        ptx.Program(module)


def test_other_directives_are_refused():
    for module in (
        text("ret;").replace(".reqntid 128", ""),
        text("ret;").replace(".reqntid 128", ".reqntid 16, 16"),
        text("ret;").replace(".reqntid 128", ".reqntid 128 .explicitcluster"),
        text("ret;").replace(".visible .entry", ".extern .func vprintf(.param .b64 a);\n.visible .entry"),
        text("ret;", ".reg .b128 %x;"),
    ):
        with pytest.raises(ptx.Unsupported):
            ptx.Program(module)
