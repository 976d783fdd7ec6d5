"""Moves and conversions (PTX ISA, "Data Movement and Conversion Instructions": mov, cvta, cvt)."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Blank, Operand, Register, Vector
from bringup.compile.ptx.translate.forms import FORM, UNSIGNED, WIDTH
from bringup.compile.ptx.translate.writer import BlockWriter

_WHOLE = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}
_ROUND = {
    ("bf16", "rn"): "round_bf16",
    ("bf16", "rz"): "truncate_bf16",
    ("f16", "rn"): "round_half",
    ("f16", "rz"): "truncate_half",
}
_FP8 = {"e4m3x2": ("saturate_e4m3", "E4M3"), "e5m2x2": ("saturate_e5m2", "E5M2")}
_FORMATS = frozenset({*FORM, *_FP8, "tf32"})


def _move(writer: BlockWriter, instruction: Instruction) -> None:
    target, source = instruction.operands
    form = FORM[instruction.type]
    if isinstance(target, Vector):
        return _unpack(writer, target.items, source, WIDTH[form])
    if isinstance(source, Vector):
        return _pack(writer, target, source.items, WIDTH[form])
    whole = writer.predicate is None and writer.width(source) == writer.width(target)
    if whole and isinstance(source, Register) and isinstance(target, Register) and not source.negated:
        return writer.copy(target, source)
    if form == "i32" and writer.form_of(target, "i32") in ("u32", "f32"):
        form = writer.form_of(target, "i32")
    return writer.write(target, form, writer.read(source, form), named=True)


def _unpack(writer: BlockWriter, parts: tuple[Operand, ...], source: Operand, width: int) -> None:
    part = width // len(parts)
    whole = writer.read(source, UNSIGNED[width])
    for place, target in enumerate(parts):
        if isinstance(target, Blank):
            continue
        if (width, part) == (32, 16):
            writer.write_half(target, whole, place)
            continue
        shifted = f"({whole} >> {writer.constant(UNSIGNED[width], part * place)})"
        if part == 8:
            writer.write(target, "u16", f"({shifted} & {writer.constant(UNSIGNED[width], 255)}).astype(u16)")
        else:
            writer.write(target, UNSIGNED[part], f"{shifted}.astype({UNSIGNED[part]})")


def _pack(writer: BlockWriter, target: Operand, parts: tuple[Operand, ...], width: int) -> None:
    part = width // len(parts)
    if (width, part) == (32, 16):
        low, high = parts
        halves = writer.half(low), writer.half(high)
        if halves[0] and halves[1] and halves[0][0] == halves[1][0] and (halves[0][1], halves[1][1]) == (0, 1):
            return writer.write(target, "u32", halves[0][0], named=True)  # both halves of one register
        return writer.write(target, "u32", f"pack_halves({writer.read(high, 'u16')}, {writer.read(low, 'u16')})")
    wide = UNSIGNED[width]
    terms: list[str] = []
    for place, source in enumerate(parts):
        bits = f"{writer.read(source, 'u32' if part == 32 else 'u16')}.astype({wide})"
        if part == 8:
            bits = f"({bits} & {writer.constant(wide, 255)})"
        terms.append(f"({bits} << {writer.constant(wide, part * place)})")
    return writer.write(target, wide, " | ".join(terms))


def _to_generic(writer: BlockWriter, instruction: Instruction) -> None:
    """cvta: global and local addresses are equal to their generic addresses."""
    writer.write(instruction.operands[0], "i64", writer.read(instruction.operands[1], "i64"), named=True)


def _policy(writer: BlockWriter, instruction: Instruction) -> None:
    """createpolicy: no effect, because caches are not modelled."""
    writer.write(instruction.operands[0], "i64", writer.constant("i64", 0), named=True)


def _convert(writer: BlockWriter, instruction: Instruction) -> None:
    """cvt. The first type is that of the result."""
    to, of = (part for part in instruction.opcode[1:] if part in _FORMATS)
    if to in _FP8:
        _to_fp8(writer, instruction, to, of)
    elif of in _FP8:
        bits = writer.read(instruction.operands[1], "u16")
        writer.write(instruction.operands[0], "u32", f"pair_from_fp8({bits}, {_FP8[of][1]})")
    elif to == "tf32":
        value = writer.read(instruction.operands[1], "f32")
        writer.write(instruction.operands[0], "u32", f"round_tf32({value})")
    elif len(instruction.operands) == 3:
        _to_pair(writer, instruction, to)
    elif to[0] in "su":
        _to_integer(writer, instruction, to, of)
    elif of[0] in "su":
        _from_integer(writer, instruction, to, of)
    else:
        _between_floats(writer, instruction, to, of)


def _rounding(instruction: Instruction) -> str:
    return "rz" if instruction.has("rz") else "rn"


def _to_pair(writer: BlockWriter, instruction: Instruction, to: str) -> None:
    """cvt to a packed pair: the first source becomes the upper half."""
    target, first, second = instruction.operands
    function = _ROUND[to[:-2], _rounding(instruction)]
    high, low = (f"{function}({writer.read(each, 'f32')})" for each in (first, second))
    writer.write(target, "u32", f"pack_halves({high}, {low})")


def _to_fp8(writer: BlockWriter, instruction: Instruction, to: str, of: str) -> None:
    function = _FP8[to][0]
    if of == "f32":
        target, first, second = instruction.operands
        high, low = writer.read(first, "f32"), writer.read(second, "f32")
    else:
        target, source = instruction.operands
        pair = writer.read(source, "u32")
        high, low = f"high_half({pair}).view(f16)", f"low_half({pair}).view(f16)"
    writer.write(target, "u16", f"pair_to_fp8({function}({high}), {function}({low}))")


def _integer(writer: BlockWriter, operand: Operand, of: str) -> str:
    """An integer source; 8-bit types are the lowest bits of a register."""
    if of == "u8":
        return f"({writer.read(operand, 'u16')} & {writer.constant('u16', 255)})"
    if of == "s8":
        return f"{writer.read(operand, 'u16')}.astype(u8).view(i8)"
    return writer.read(operand, FORM[of])


def _float(writer: BlockWriter, instruction: Instruction, of: str) -> str:
    value = writer.read(instruction.operands[1], FORM[of])
    if of == "bf16":
        return f"widen_bf16({value})"
    return f"flush({value})" if of == "f32" and instruction.has("ftz") else value


def _to_integer(writer: BlockWriter, instruction: Instruction, to: str, of: str) -> None:
    target, source = instruction.operands
    form = FORM[to]
    if of[0] in "su":
        if form in ("i64", "u64") and WIDTH[FORM[of]] < 64 and of not in ("u8", "s8"):
            return writer.write(target, "i64", writer.widened(source, FORM[of], "i64"), named=True)
        value = _integer(writer, source, of)
        if to in ("u8", "s8"):
            return writer.write(target, form, f"{value}.astype({'u8' if to == 'u8' else 'i8'}).astype({form})")
        return writer.write(target, form, f"{value}.astype({form})")
    whole = next(name for rounding, name in _WHOLE.items() if instruction.has(rounding))
    dtype = {"u8": "u8", "s8": "i8"}.get(to, form)
    wide = of == "f64" or to in ("s64", "u64")
    value = f"from_float({_float(writer, instruction, of)}, {dtype}, {whole}, wide={wide})"
    return writer.write(target, form, value if dtype == form else f"{value}.astype({form})")


def _from_integer(writer: BlockWriter, instruction: Instruction, to: str, of: str) -> None:
    value = _integer(writer, instruction.operands[1], of)
    if to == "bf16":
        return writer.write(instruction.operands[0], "u16", f"round_bf16_once({value}.astype(f64))")
    if to == "f16":  # integers inexact in float64 are infinite in fp16
        return writer.write(instruction.operands[0], "f16", f"{value}.astype(f64).astype(f16)")
    return writer.write(instruction.operands[0], to, f"{value}.astype({to})")


def _between_floats(writer: BlockWriter, instruction: Instruction, to: str, of: str) -> None:
    target, source = instruction.operands
    half = writer.half(source)
    if of == "bf16" and half is not None:  # a half of a 32-bit register: one operation
        return writer.write(target, "f32", f"widen_{('low', 'high')[half[1]]}_bf16({half[0]})")
    value = _float(writer, instruction, of)
    whole = next((name for rounding, name in _WHOLE.items() if instruction.has(rounding)), None)
    if to == "bf16":
        expression, form = f"{_ROUND['bf16', _rounding(instruction)]}({value})", "u16"
    elif to == "f16" and of == "f32":
        expression, form = f"{_ROUND['f16', _rounding(instruction)]}({value})", "u16"
    elif whole is not None:
        expression, form = f"{whole}({value})", to
    elif of == "bf16" or to == of:
        expression, form = value, to
    else:
        expression, form = f"{value}.astype({to})", to
    if instruction.has("sat"):
        expression = f"saturate({expression})"
    return writer.write(target, form, f"flush({expression})" if instruction.has("ftz") and to == "f32" else expression)


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "mov": _move,
    "cvta": _to_generic,
    "createpolicy": _policy,
    "cvt": _convert,
}
"""Opcode -> the function that emits its statements."""
