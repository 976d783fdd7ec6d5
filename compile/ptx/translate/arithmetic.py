"""Arithmetic on integers and floats (PTX ISA, "Integer Arithmetic", "Extended-Precision", "Floating Point", "Half")."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Operand
from bringup.compile.ptx.translate.forms import FORM
from bringup.compile.ptx.translate.writer import CONVERTED, BlockWriter

_SYMBOL = {"add": "+", "sub": "-", "mul": "*"}
_UNARY = {
    "sqrt": "np.sqrt({})",
    "rsqrt": "reciprocal_root({})",
    "rcp": "reciprocal({})",
    "ex2": "exp2({})",
    "lg2": "log2({})",
    "sin": "sine({})",
    "cos": "cosine({})",
    "tanh": "tangent_hyperbolic({})",
    "abs": "np.abs({})",
    "neg": "-{}",
}
_PACKED = {"f16x2": "two_half", "bf16x2": "two_bf16", "bf16": "one_bf16"}


def _source(writer: BlockWriter, instruction: Instruction, operand: Operand, form: str) -> str:
    """An operand. With `.ftz`, a subnormal float32 is flushed."""
    value = writer.read(operand, form)
    return f"flush({value})" if form == "f32" and instruction.has("ftz") else value


def _result(instruction: Instruction, expression: str) -> str:
    """The result after `.sat` and `.ftz` of a float32."""
    if instruction.has("sat"):
        expression = f"saturate({expression})"
    return f"flush({expression})" if instruction.has("ftz") else expression


def _packed(writer: BlockWriter, instruction: Instruction, operation: str) -> bool:
    """Emits bf16 and packed operations, which are functions of bit patterns. Returns whether the instruction is one."""
    if instruction.type in ("u16x2", "s16x2"):
        first, second = (writer.read(operand, "u32") for operand in instruction.operands[1:])
        call = f"two_integers({operation!r}, {first}, {second}, {FORM[instruction.type[:3]]})"
        writer.write(instruction.operands[0], "u32", call)
        return True
    function = _PACKED.get(instruction.type)
    if function is None:
        return False
    form = "u16" if instruction.type == "bf16" else "u32"
    values = ", ".join(writer.read(operand, form) for operand in instruction.operands[1:])
    writer.write(instruction.operands[0], form, f"{function}({operation!r}, {values})")
    return True


def _simple(writer: BlockWriter, instruction: Instruction) -> None:
    """add, sub, mul."""
    if instruction.has("cc"):
        return _carry(writer, instruction)
    operation = instruction.base
    if _packed(writer, instruction, operation):
        return None
    target, first, second = instruction.operands
    form = writer.integer_form(FORM[instruction.type], (first, second))
    a, b = (_source(writer, instruction, each, form) for each in (first, second))
    if instruction.has("rz"):
        toward = "multiply_toward_zero" if operation == "mul" else "add_toward_zero"
        expression = f"{toward}({a}, {'-' if operation == 'sub' else ''}{b})"
    else:
        expression = f"{a} {_SYMBOL[operation]} {b}"
    writer.write(target, form, _result(instruction, expression) if form == "f32" else expression)
    return None


def _high(writer: BlockWriter, instruction: Instruction, form: str) -> str:
    a, b = (writer.read(each, form) for each in instruction.operands[1:3])
    return f"multiply_high{'_64' if form in ('i64', 'u64') else ''}({a}, {b})"


def _wide(writer: BlockWriter, instruction: Instruction, form: str) -> str:
    a, b = (writer.widened(each, form, CONVERTED[form]) for each in instruction.operands[1:3])
    return f"{a} * {b}"


def _multiply(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    if instruction.has("wide"):
        writer.write(instruction.operands[0], CONVERTED[form], _wide(writer, instruction, form))
    elif instruction.has("hi"):
        writer.write(instruction.operands[0], form, _high(writer, instruction, form))
    else:
        _simple(writer, instruction)


def _multiply_add(writer: BlockWriter, instruction: Instruction) -> None:
    if instruction.has("cc"):
        return _carry(writer, instruction)
    target, first, second, third = instruction.operands
    form = FORM[instruction.type]
    if instruction.has("wide"):
        wide = CONVERTED[form]
        added = writer.read(third, wide)
        writer.write(target, wide, f"{_wide(writer, instruction, form)} + {added}")
    elif instruction.has("hi"):
        added = writer.read(third, form)
        writer.write(target, form, f"{_high(writer, instruction, form)} + {added}")
    else:
        a, b, c = (writer.read(each, form) for each in (first, second, third))
        writer.write(target, form, f"{a} * {b} + {c}")
    return None


def _carry(writer: BlockWriter, instruction: Instruction) -> None:
    """Sums with a carry: `.cc` sets it, addc and madc read it. All are in one basic block, without predicates."""
    operands = instruction.operands
    if writer.predicate is not None:
        raise writer.unsupported("a predicated carry")
    if instruction.base in ("mad", "madc"):
        a, b = (f"{writer.read(each, 'u32')}.astype(u64)" for each in operands[1:3])
        signed = instruction.type == "s32" and instruction.has("hi")
        if signed:
            a, b = (writer.read(each, "i32") for each in operands[1:3])
            product = f"multiply_high({a}, {b}).view(u32).astype(u64)"
        else:
            product = f"(({a} * {b}) >> u64(32))" if instruction.has("hi") else f"(({a} * {b}) & u64(0xFFFFFFFF))"
        total, added = product, operands[3]
    else:
        total, added = f"{writer.read(operands[1], 'u32')}.astype(u64)", operands[2]
    total += f" + {writer.read(added, 'u32')}"
    if instruction.base in ("addc", "madc"):
        if writer.carry is None:
            raise writer.unsupported("a carry from another basic block")
        total += f" + {writer.carry}"
    value = writer.name(total)
    if instruction.has("cc"):
        writer.carry = writer.name(f"{value} >> u64(32)")
    writer.write(operands[0], "u32", f"{value}.astype(u32)")


def _fused(writer: BlockWriter, instruction: Instruction) -> None:
    if _packed(writer, instruction, "fma"):
        return
    form = FORM[instruction.type]
    values = ", ".join(_source(writer, instruction, each, form) for each in instruction.operands[1:])
    name = {"f32": "fma32", "f64": "fma64", "f16": "fma16"}[form]
    expression = f"{name}({values})"
    writer.write(instruction.operands[0], form, _result(instruction, expression) if form == "f32" else expression)


def _divide(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    a, b = (_source(writer, instruction, each, form) for each in instruction.operands[1:])
    expression = f"{a} / {b}" if form in ("f32", "f64") else f"divide({a}, {b})"
    writer.write(instruction.operands[0], form, _result(instruction, expression) if form == "f32" else expression)


def _remainder(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    a, b = (writer.read(each, form) for each in instruction.operands[1:])
    writer.write(instruction.operands[0], form, f"remainder({a}, {b})")


def _extreme(writer: BlockWriter, instruction: Instruction) -> None:
    """min and max."""
    nan = instruction.has("NaN")
    if _packed(writer, instruction, f"{instruction.base}{'.NaN' if nan else ''}"):
        return
    form, small = FORM[instruction.type], instruction.base == "min"
    if form in ("f16", "f32", "f64"):
        function = ("smaller" if small else "larger") + ("_or_nan" if nan else "")
    else:
        function = "np.minimum" if small else "np.maximum"
    values = [_source(writer, instruction, each, form) for each in instruction.operands[1:]]
    if instruction.has("xorsign"):
        a, b = values
        expression = f"signs_multiplied({function}(np.abs({a}), np.abs({b})), {a}, {b})"
    else:
        expression = f"{function}({values[0]}, {values[1]})"
        if len(values) == 3:
            expression = f"{function}({expression}, {values[2]})"
    if instruction.has("relu"):
        expression = f"np.maximum({expression}, {writer.constant(form, 0)})"
    writer.write(instruction.operands[0], form, expression)


_SIGN_BITS = {
    "f16": ("u16", 0x8000),
    "bf16": ("u16", 0x8000),
    "f16x2": ("u32", 0x80008000),
    "bf16x2": ("u32", 0x80008000),
}


def _unary(writer: BlockWriter, instruction: Instruction) -> None:
    target, source = instruction.operands
    signs = _SIGN_BITS.get(instruction.type)
    if signs is not None and instruction.base in ("abs", "neg"):
        form, sign = signs
        value = writer.read(source, form)
        absolute = f"{value} & {writer.constant(form, ~sign)}"
        writer.write(
            target, form, absolute if instruction.base == "abs" else f"{value} ^ {writer.constant(form, sign)}"
        )
        return
    form = FORM[instruction.type]
    value = _source(writer, instruction, source, form)
    writer.write(target, form, _result(instruction, _UNARY[instruction.base].format(value)))


def _copy_sign(writer: BlockWriter, instruction: Instruction) -> None:
    form = FORM[instruction.type]
    target, sign, magnitude = instruction.operands
    writer.write(target, form, f"np.copysign({writer.read(magnitude, form)}, {writer.read(sign, form)})")


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "add": _simple,
    "sub": _simple,
    "mul": _multiply,
    "mad": _multiply_add,
    "addc": _carry,
    "madc": _carry,
    "fma": _fused,
    "div": _divide,
    "rem": _remainder,
    "min": _extreme,
    "max": _extreme,
    "copysign": _copy_sign,
    **dict.fromkeys(_UNARY, _unary),
}
"""Opcode -> the function that emits its statements."""
