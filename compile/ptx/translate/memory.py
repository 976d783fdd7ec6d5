"""Loads, stores, atomics, ldmatrix and stmatrix (PTX ISA, "Data Movement", "Parallel Synchronization")."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import BITS, Instruction
from bringup.compile.ptx.assembly.operands import Address, Blank, Immediate, Operand, Register, Symbol, Vector
from bringup.compile.ptx.translate.forms import FORM, UNSIGNED
from bringup.compile.ptx.translate.writer import BlockWriter

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_ATOMIC_FORM = {"b32": "u32", "b64": "u64", "f16": "u16"}


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector operand, or the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def _elements(writer: BlockWriter, instruction: Instruction, operand: Operand) -> tuple[Operand, ...]:
    """The registers of a load or a store: 2 with `.v2`, 4 with `.v4`."""
    items = items_of(operand)
    count = next((int(part[1]) for part in instruction.opcode if part in ("v2", "v4")), 1)
    if len(items) != count:
        raise writer.unsupported(f"{len(items)} registers for {count} elements")
    return items


def space_of(instruction: Instruction) -> str:
    """The state space of an access. Generic addresses are global addresses."""
    parts = [part.partition("::")[0] for part in instruction.opcode[1:]]
    return next((part for part in parts if part in ("param", "shared", "local")), "global")


def address_of(writer: BlockWriter, operand: Operand, space: str) -> tuple[str, int]:
    """The base of an address, as an expression, and its offset in bytes."""
    assert isinstance(operand, Address)
    if isinstance(operand.base, Immediate | Symbol):
        return writer.read(operand.base, "i32" if space == "shared" else "i64"), operand.offset
    narrow = space == "shared" and writer.width(operand.base) == 32
    return writer.read(operand.base, "i32" if narrow else "i64"), operand.offset


def place_of(writer: BlockWriter, operand: Operand, space: str) -> str:
    """An address plus its offset, as an expression."""
    base, offset = address_of(writer, operand, space)
    form = "i64" if space != "shared" else "i32"
    return f"{base} + {writer.constant(form, offset)}" if offset else base


def _load(writer: BlockWriter, instruction: Instruction) -> None:
    target, address = instruction.operands[:2]
    targets, kind = _elements(writer, instruction, target), instruction.type
    width = BITS[kind] // 8
    assert isinstance(address, Address)
    if space_of(instruction) == "param":
        return _load_parameter(writer, targets, address, kind)
    base, offset = address_of(writer, address, space_of(instruction))
    loaded = writer.name(
        f"load_{space_of(instruction)}(context, {base}, {offset}, {width}, {len(targets)}, "
        f"{writer.mask}, {writer.here})"
    )
    for place, each in enumerate(targets):
        if isinstance(each, Blank):
            continue
        if width == 1:
            signed = ".view(i8).astype(i16)" if kind == "s8" else ".astype(u16)"
            writer.write(each, FORM[kind], f"{loaded}[{place}]{signed}")
        else:
            _write_bits(writer, each, f"{loaded}[{place}]", kind)
    return None


def _write_bits(writer: BlockWriter, target: Operand, value: str, kind: str) -> None:
    """Writes a loaded value to a register. A wider register is sign-extended if the type is signed."""
    form = UNSIGNED[BITS[kind]]
    if kind[0] == "s" and writer.width(target) > BITS[kind]:
        writer.write(target, FORM[kind], f"{value}.view({FORM[kind]})")
    else:
        writer.write(target, form, value)


def _load_parameter(writer: BlockWriter, targets: tuple[Operand, ...], address: Address, kind: str) -> None:
    if not isinstance(address.base, Symbol):
        raise writer.unsupported("a parameter at a computed address")
    parameter, width = writer.kernel.parameters[address.base.name], BITS[kind] // 8
    if address.offset < 0 or address.offset + width * len(targets) > parameter.size:
        raise writer.unsupported(f"this reads outside of parameter {parameter.name}")
    form = {"s8": "i8", "u8": "u8", "b8": "u8"}.get(kind, FORM[kind])
    for place, target in enumerate(targets):
        offset = parameter.offset + address.offset + place * width
        value = f"context.launch.parameter({offset}, {form})"
        writer.write(target, FORM[kind], f"{value}.astype({FORM[kind]})" if width == 1 else value)


def _store(writer: BlockWriter, instruction: Instruction) -> None:
    address, source = instruction.operands[:2]
    width, space = BITS[instruction.type] // 8, space_of(instruction)
    values = ", ".join(_stored(writer, each, width) for each in _elements(writer, instruction, source))
    base, offset = address_of(writer, address, space)
    writer.emit(f"store_{space}(context, {base}, {offset}, {width}, [{values}], {writer.mask}, {writer.here})")


def _stored(writer: BlockWriter, source: Operand, width: int) -> str:
    if width > 1:
        return writer.read(source, UNSIGNED[8 * width])
    wide = UNSIGNED[max(16, writer.width(source))]
    return f"{writer.read(source, wide)}.astype(u8)"


def _atomic(writer: BlockWriter, instruction: Instruction) -> None:
    """atom returns the old value, red does not."""
    kind = instruction.type
    form = _ATOMIC_FORM.get(kind, FORM[kind])
    target, rest = (
        (instruction.operands[0], instruction.operands[1:])
        if instruction.base == "atom"
        else (Blank(), instruction.operands)
    )
    operation = next(part for part in instruction.opcode[1:] if part in _OPERATIONS)
    value = writer.read(rest[-1], form)
    compare = writer.read(rest[1], form) if operation == "cas" else "None"
    order = next((part for part in instruction.opcode if part in _ORDERS), "relaxed")
    space = space_of(instruction)
    base, offset = address_of(writer, rest[0], space)
    call = (
        f"atomic_{space}(context, {operation!r}, {kind!r}, {base}, {offset}, {value}, {compare}, "
        f"{writer.mask}, {writer.here}, {order!r})"
    )
    if isinstance(target, Register):
        writer.write(target, form, call)
    else:
        writer.emit(call)


_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")


def _load_matrix(writer: BlockWriter, instruction: Instruction) -> None:
    target, address = instruction.operands
    base, offset = address_of(writer, address, "shared")
    transpose = instruction.has("trans")
    targets = _matrices(writer, instruction, target)
    loaded = writer.name(
        f"load_matrix(context, {base}, {offset}, {len(targets)}, {transpose}, {writer.mask}, {writer.here})"
    )
    for place, each in enumerate(targets):
        writer.write(each, "u32", f"{loaded}[{place}]")


def _matrices(writer: BlockWriter, instruction: Instruction, operand: Operand) -> tuple[Operand, ...]:
    """The registers of ldmatrix and stmatrix: one per matrix."""
    items = items_of(operand)
    if not instruction.has(f"x{len(items)}"):
        raise writer.unsupported("another number of registers than matrices")
    return items


def _store_matrix(writer: BlockWriter, instruction: Instruction) -> None:
    address, source = instruction.operands
    values = ", ".join(writer.read(each, "u32") for each in _matrices(writer, instruction, source))
    base, offset = address_of(writer, address, "shared")
    transpose = instruction.has("trans")
    writer.emit(f"store_matrix(context, {base}, {offset}, [{values}], {transpose}, {writer.mask}, {writer.here})")


def _nothing(_writer: BlockWriter, _instruction: Instruction) -> None:
    """Cache hints have no effect."""


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "ld": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
    "prefetch": _nothing,
}
"""Opcode -> the function that emits its statements."""
