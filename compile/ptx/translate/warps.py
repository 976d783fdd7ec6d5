"""Operations across a warp, and matrix products (PTX ISA, "Warp Level", "Asynchronous Warpgroup Level")."""

from __future__ import annotations

import re
from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Blank, Immediate, Operand, Pair, Vector
from bringup.compile.ptx.translate.forms import FORM
from bringup.compile.ptx.translate.memory import items_of
from bringup.compile.ptx.translate.writer import BlockWriter

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_ALL = "np.bool_(True)"


def _parts(operand: Operand) -> tuple[Operand, Operand]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Blank())


def _shuffle(writer: BlockWriter, instruction: Instruction) -> None:
    target, value, lane, clamp, _ = instruction.operands
    result, in_range = _parts(target)
    mode, form = instruction.opcode[2], writer.form_of(value, "u32")
    assert isinstance(clamp, Immediate)
    given = writer.read(value, form)
    plain = mode == "bfly" and clamp.integer == 31 and isinstance(in_range, Blank)
    if plain and isinstance(lane, Immediate) and lane.integer in (1, 2, 4, 8, 16):
        return writer.write(result, form, f"butterfly({given}, {lane.integer})")
    call = f"shuffle(context, {mode!r}, {given}, {writer.read(lane, 'i32')}, {clamp.integer}, {writer.mask})"
    shuffled = writer.name(call)
    writer.write(result, form, f"{shuffled}[0]")
    return writer.write(in_range, "bool", f"{shuffled}[1]")


def _vote(writer: BlockWriter, instruction: Instruction) -> None:
    target, predicate = instruction.operands[:2]
    voted = f"ballot(context, {writer.read(predicate, 'bool')}, {writer.mask})"
    if instruction.has("ballot"):
        return writer.write(target, "u32", voted)
    votes = writer.name(voted)
    if instruction.has("any"):
        return writer.write(target, "bool", f"{votes} != u32(0)")
    everyone = writer.name(f"ballot(context, {_ALL}, {writer.mask})")
    same = f"({votes} == {everyone})"
    return writer.write(target, "bool", f"{same} | ({votes} == u32(0))" if instruction.has("uni") else same)


def _active(writer: BlockWriter, instruction: Instruction) -> None:
    writer.write(instruction.operands[0], "u32", f"ballot(context, {_ALL}, {writer.mask})")


def _reduce(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    value = writer.read(instruction.operands[1], form)
    writer.write(
        instruction.operands[0], form, f"reduce_warp(context, {instruction.opcode[2]!r}, {value}, {writer.mask})"
    )


def _elect(writer: BlockWriter, instruction: Instruction) -> None:
    lane, elected = _parts(instruction.operands[0])
    both = writer.name(f"elect(context, {writer.mask})")
    writer.write(lane, "u32", f"{both}[0]")
    writer.write(elected, "bool", f"{both}[1]")


def _match(writer: BlockWriter, instruction: Instruction) -> None:
    target, value, _ = instruction.operands
    given = writer.read(value, {"b32": "u32", "b64": "u64"}[instruction.type])
    if instruction.has("any"):
        return writer.write(target, "u32", f"match_any(context, {given}, {writer.mask})")
    mask, same = _parts(target)
    both = writer.name(f"match_all(context, {given}, {writer.mask})")
    writer.write(mask, "u32", f"{both}[0]")
    return writer.write(same, "bool", f"{both}[1]")


def _shape(instruction: Instruction) -> tuple[int, ...]:
    found = next(match for part in instruction.opcode if (match := _SHAPE.fullmatch(part)))
    return tuple(int(size) for size in found.groups())


def _list(writer: BlockWriter, operand: Operand, form: str) -> str:
    return "[" + ", ".join(writer.read(each, form) for each in items_of(operand)) + "]"


def _write_all(writer: BlockWriter, operand: Operand, form: str, values: str) -> None:
    for place, each in enumerate(items_of(operand)):
        writer.write(each, form, f"{values}[{place}]")


def _matrix_product(writer: BlockWriter, instruction: Instruction) -> None:
    """mma.sync. Its types are those of d, a, b and c."""
    target, first, second, third = instruction.operands
    column = instruction.opcode.index("col") + 1
    kinds = [part for part in instruction.opcode[column:] if part != "satfinite"]
    form = FORM[kinds[0]]
    values = ", ".join([_list(writer, first, "u32"), _list(writer, second, "u32"), _list(writer, third, form)])
    settings = f"{_shape(instruction)}, {tuple(kinds[:3])}, {instruction.has('satfinite')}"
    product = writer.name(f"multiply(context, {values}, {settings}, {writer.mask}, {writer.here})")
    _write_all(writer, target, form, product)


def _group_product(writer: BlockWriter, instruction: Instruction) -> None:
    """wgmma.mma_async.

    Constants: the signs of a and b, then whether each is transposed (only b if a is in registers).
    """
    if not instruction.has("mma_async"):
        return _group_order(writer, instruction)
    target, first, second, scale, *constants = instruction.operands
    numbers = [each.integer for each in constants if isinstance(each, Immediate)]
    signs, transposed = (numbers[:2] or [1, 1]), numbers[2:]
    in_registers = isinstance(first, Vector)
    if in_registers:
        transposed = [0, *transposed]
    across = [*transposed, 0, 0][:2]
    place = next(n for n, part in enumerate(instruction.opcode) if _SHAPE.fullmatch(part))
    kinds = [part for part in instruction.opcode[place + 1 :] if part != "satfinite"]
    if instruction.has("satfinite"):
        raise writer.unsupported("saturating sums of a warpgroup")
    form = FORM[kinds[0]]
    a = _list(writer, first, "u32") if in_registers else writer.read(first, "i64")
    flags = ", ".join(str(each) for each in (*(sign < 0 for sign in signs), *(bool(each) for each in across)))
    product = writer.name(
        f"multiply_group(context, {_list(writer, target, form)}, {a}, {writer.read(second, 'i64')}, "
        f"{writer.read(scale, 'bool')}, {flags}, {_shape(instruction)}, {tuple(kinds[:3])}, "
        f"{writer.mask}, {writer.here})"
    )
    return _write_all(writer, target, form, product)


def _group_order(writer: BlockWriter, instruction: Instruction) -> None:
    """wgmma.fence, commit_group and wait_group: products complete at once. Observers receive the order."""
    kind = instruction.opcode[1].removesuffix("_group")
    pending = instruction.operands[0] if instruction.operands else None
    count = f"{pending.integer}, " if isinstance(pending, Immediate) else ""
    writer.emit(f"group_{kind}(context, {count}{writer.mask}, {writer.here})")


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "shfl": _shuffle,
    "vote": _vote,
    "activemask": _active,
    "redux": _reduce,
    "elect": _elect,
    "match": _match,
    "mma": _matrix_product,
    "wgmma": _group_product,
}
"""Opcode -> the function that emits its statements."""
