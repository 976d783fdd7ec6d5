"""Logic, shifts, bit fields, comparisons and selection (PTX ISA, "Logic and Shift", "Comparison and Selection")."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Immediate, Operand, Pair
from bringup.compile.ptx.translate.forms import FORM, UNSIGNED, WIDTH
from bringup.compile.ptx.translate.writer import BlockWriter

_SYMBOL = {"and": "&", "or": "|", "xor": "^"}
_COMPARISON = {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"lo": "<", "ls": "<=", "hi": ">", "hs": ">="},
}
_FLOAT = {
    "ne": "(({a} < {b}) | ({a} > {b}))",
    "equ": "~(({a} < {b}) | ({a} > {b}))",
    "neu": "({a} != {b})",
    "ltu": "~({a} >= {b})",
    "leu": "~({a} > {b})",
    "gtu": "~({a} <= {b})",
    "geu": "~({a} < {b})",
    "num": "(({a} == {a}) & ({b} == {b}))",
    "nan": "(({a} != {a}) | ({b} != {b}))",
}


def _binary(writer: BlockWriter, instruction: Instruction) -> None:
    target, first, second = instruction.operands
    form = writer.integer_form(FORM[instruction.type], (first, second))
    symbol = _SYMBOL[instruction.base]
    writer.write(target, form, f"{writer.read(first, form)} {symbol} {writer.read(second, form)}")


def _not(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    writer.write(instruction.operands[0], form, f"~{writer.read(instruction.operands[1], form)}")


def _amount(writer: BlockWriter, operand: Operand, form: str) -> str:
    """A shift amount, an unsigned 32-bit integer, in the type of the shifted value.

    numpy and PTX agree on shifts by the width or more.
    """
    if isinstance(operand, Immediate):
        return writer.constant(form, min(operand.integer % (1 << 32), WIDTH[form]))
    amount = writer.read(operand, "u32")
    return f"count_16({amount}).astype({form})" if WIDTH[form] == 16 else f"{amount}.astype({form})"


def _shift(writer: BlockWriter, instruction: Instruction) -> None:
    target, value, amount = instruction.operands
    if instruction.base == "shl":
        form = writer.integer_form(FORM[instruction.type], (value,))
        writer.write(target, form, f"{writer.read(value, form)} << {_amount(writer, amount, form)}")
    else:  # bits are shifted as unsigned integers
        form = FORM[instruction.type]
        form = form if instruction.type[0] == "s" else UNSIGNED[WIDTH[form]]
        writer.write(target, form, f"{writer.read(value, form)} >> {_amount(writer, amount, form)}")


def _funnel(writer: BlockWriter, instruction: Instruction) -> None:
    target, low, high, amount = instruction.operands
    a, b, count = (writer.read(each, "u32") for each in (low, high, amount))
    limited = f"({count} & u32(31))" if instruction.has("wrap") else f"np.minimum({count}, u32(32))"
    side = "left" if instruction.has("l") else "right"
    writer.write(target, "u32", f"funnel_{side}({a}, {b}, {limited})")


def _extract(writer: BlockWriter, instruction: Instruction) -> None:
    target, value, position, length = instruction.operands
    form = FORM[instruction.type]
    bits = writer.read(value, form)
    if isinstance(position, Immediate) and isinstance(length, Immediate):
        start, count, width = position.integer & 255, length.integer & 255, WIDTH[form]
        if form not in ("i32", "i64"):
            field = f"({bits} >> {writer.constant(form, min(start, width))})"
            mask = writer.constant(form, (1 << min(count, width)) - 1)
            return writer.write(target, form, f"{field} & {mask}")
        if not count:
            return writer.write(target, form, writer.constant(form, 0))
        start = min(start, width - 1)  # beyond the last bit the field is filled with that bit
        end = min(start + count, width)
        left, right = writer.constant(form, width - end), writer.constant(form, width - end + start)
        return writer.write(target, form, f"({bits} << {left}) >> {right}")
    function = "extract_signed" if form == "i32" else "extract_unsigned"
    return writer.write(target, form, f"{function}({bits}, {writer.read(position, form)}, {writer.read(length, form)})")


def _function(name: str) -> Callable[[BlockWriter, Instruction], None]:
    """Emits an instruction as one function of u32 operands."""

    def emit(writer: BlockWriter, instruction: Instruction) -> None:
        values = ", ".join(writer.read(each, "u32") for each in instruction.operands[1:])
        writer.write(instruction.operands[0], "u32", f"{name}({values})")

    return emit


def _three(writer: BlockWriter, instruction: Instruction) -> None:
    *values, table = instruction.operands[1:]
    assert isinstance(table, Immediate)
    words = ", ".join(writer.read(each, "u32") for each in values)
    writer.write(instruction.operands[0], "u32", f"logic_of_three({words}, {table.integer & 255})")


def _count(writer: BlockWriter, instruction: Instruction) -> None:
    """popc and clz return 32 bits for every operand type."""
    value = writer.read(instruction.operands[1], UNSIGNED[WIDTH[FORM[instruction.type]]])
    ones = instruction.base == "popc"
    writer.write(
        instruction.operands[0], "u32", f"np.bitwise_count({value}).astype(u32)" if ones else f"leading_zeros({value})"
    )


def _compared(writer: BlockWriter, instruction: Instruction) -> str:
    comparison, form = instruction.opcode[1], FORM[instruction.type]
    operands = instruction.operands[1:3]
    if instruction.type == "bf16":
        a, b = (writer.name(f"widen_bf16({writer.read(each, 'u16')})") for each in operands)
        form = "f32"
    else:
        if comparison in ("lo", "ls", "hi", "hs"):
            form = UNSIGNED[WIDTH[form]]
        a, b = (writer.read(each, form) for each in operands)
        if instruction.has("ftz"):
            a, b = writer.name(f"flush({a})"), writer.name(f"flush({b})")
    return _comparison(comparison, a, b, is_float=form[0] == "f")


def _comparison(comparison: str, a: str, b: str, *, is_float: bool) -> str:
    if is_float and comparison in _FLOAT:
        return _FLOAT[comparison].format(a=a, b=b)
    return f"({a} {_COMPARISON[comparison]} {b})"


def _set_two_predicates(writer: BlockWriter, instruction: Instruction) -> None:
    """Of pairs of 16-bit floats: the first result compares the low halves, the second the high ones."""
    target, *operands = instruction.operands
    assert isinstance(target, Pair)
    half = "widen_{}_bf16({})" if instruction.type == "bf16x2" else "{}_half({}).view(f16)"
    values = [writer.read(each, "u32") for each in operands]
    found: list[str] = []
    for side in ("low", "high"):
        a, b = (writer.name(half.format(side, value)) for value in values)
        found.append(writer.name(_comparison(instruction.opcode[1], a, b, is_float=True)))
    writer.write(target.first, "bool", found[0])
    writer.write(target.second, "bool", found[1])


def _set_predicate(writer: BlockWriter, instruction: Instruction) -> None:
    """The second result of a pair is the complement of the comparison (PTX ISA, `setp`)."""
    if instruction.type in ("f16x2", "bf16x2"):
        return _set_two_predicates(writer, instruction)
    compared = _compared(writer, instruction)
    combined = next((_SYMBOL[each] for each in instruction.opcode[2:] if each in _SYMBOL), None)
    target = instruction.operands[0]
    if combined is None:
        first, second = compared, f"~{compared}"
    else:
        other = writer.read(instruction.operands[3], "bool")
        compared = writer.name(compared) if isinstance(target, Pair) else compared
        first, second = f"{compared} {combined} {other}", f"~{compared} {combined} {other}"
    if isinstance(target, Pair):
        writer.write(target.first, "bool", first)
        writer.write(target.second, "bool", second)
    else:
        writer.write(target, "bool", first)
    return None


def _select(writer: BlockWriter, instruction: Instruction) -> None:
    target, first, second, predicate = instruction.operands
    form = FORM[instruction.type]
    if form == "i32":
        given = next((writer.form_of(each, "") for each in (first, second) if writer.width(each)), "")
        form = given or writer.form_of(target, form)
    a, b = writer.read(first, form), writer.read(second, form)
    writer.write(target, form, f"np.where({writer.read(predicate, 'bool')}, {a}, {b})")


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    **dict.fromkeys(_SYMBOL, _binary),
    "not": _not,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "bfe": _extract,
    "bfi": _function("insert"),
    "prmt": _function("permute_bytes"),
    "brev": _function("reverse_bits"),
    "set": _function("half_is_nan"),
    "lop3": _three,
    "popc": _count,
    "clz": _count,
    "setp": _set_predicate,
    "selp": _select,
}
"""Opcode -> the function that emits its statements."""
