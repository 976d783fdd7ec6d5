"""Asynchronous copies, mbarriers and tensor maps (PTX ISA, "Asynchronous copy", "mbarrier", "tensormap")."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Address, Immediate, Operand, Vector
from bringup.compile.ptx.translate.memory import address_of, place_of
from bringup.compile.ptx.translate.writer import BlockWriter


def _number(operand: Operand) -> int:
    assert isinstance(operand, Immediate)
    return operand.integer


def _end(writer: BlockWriter) -> str:
    """The last arguments of every function here."""
    return f"{writer.mask}, {writer.here}"


def _copy(writer: BlockWriter, instruction: Instruction) -> None:
    """cp.async and cp.async.bulk."""
    if instruction.has("bulk"):
        _bulk(writer, instruction)
    elif instruction.has("commit_group"):
        writer.emit(f"commit_copies(context, {_end(writer)})")
    elif instruction.has("wait_all"):
        writer.emit(f"wait_copies(context, None, {_end(writer)})")
    elif instruction.has("wait_group"):
        writer.emit(f"wait_copies(context, {_number(instruction.operands[0])}, {_end(writer)})")
    elif instruction.has("mbarrier"):
        place = place_of(writer, instruction.operands[0], "shared")
        writer.emit(f"copies_arrive(context, {place}, {not instruction.has('noinc')}, {_end(writer)})")
    else:
        _copy_bytes(writer, instruction)


def _copy_bytes(writer: BlockWriter, instruction: Instruction) -> None:
    """Optional operands: the size of the source, and the cache policy."""
    target, source, size, *rest = instruction.operands
    if instruction.has("L2::cache_hint"):
        rest = rest[:-1]
    read = writer.read(rest[0], "i32") if rest else "None"
    into, of = place_of(writer, target, "shared"), place_of(writer, source, "global")
    writer.emit(f"copy_async(context, {into}, {of}, {_number(size)}, {read}, {_end(writer)})")


def _bulk(writer: BlockWriter, instruction: Instruction) -> None:
    operands = instruction.operands
    if instruction.has("commit_group"):
        writer.emit(f"tensor_commit(context, {_end(writer)})")
    elif instruction.has("wait_group"):
        writer.emit(f"tensor_wait(context, {_number(operands[0])}, {_end(writer)})")
    elif instruction.has("bulk_group"):
        tensor, source = operands
        place = place_of(writer, source, "shared")
        descriptor, coordinates = _tensor(writer, tensor)
        writer.emit(f"tensor_store(context, {place}, {descriptor}, {coordinates}, {_end(writer)})")
    else:
        target, tensor, barrier = operands[:3]
        into, descriptor = place_of(writer, target, "shared"), _tensor(writer, tensor)
        signal = place_of(writer, barrier, "shared")
        writer.emit(f"tensor_load(context, {into}, {descriptor[0]}, {descriptor[1]}, {signal}, {_end(writer)})")


def _tensor(writer: BlockWriter, operand: Operand) -> tuple[str, str]:
    """The address of a tensor map, and its coordinates as a list: `[map, {x, y}]`."""
    assert isinstance(operand, Address)
    match operand.rest:
        case (Vector(items=items),):
            coordinates = ", ".join(writer.read(each, "i32") for each in items)
            return place_of(writer, operand, "global"), f"[{coordinates}]"
        case _:
            raise writer.unsupported("a tensor without its coordinates")


def _barrier(writer: BlockWriter, instruction: Instruction) -> None:
    """mbarrier."""
    kind = instruction.opcode[1]
    addresses = [each for each in instruction.operands if isinstance(each, Address)]
    place = place_of(writer, addresses[0], "shared")
    last = instruction.operands[-1]
    match kind:
        case "init":
            writer.emit(f"barrier_init(context, {place}, {writer.read(last, 'i32')}, {_end(writer)})")
        case "inval":
            writer.emit(f"barrier_invalidate(context, {place}, {_end(writer)})")
        case "expect_tx":
            writer.emit(f"barrier_expect(context, {place}, {writer.read(last, 'i32')}, {_end(writer)})")
        case "arrive":
            given = "" if isinstance(last, Address) else writer.read(last, "i32")
            expects = instruction.has("expect_tx")
            count, transactions = ("1", given) if expects else (given or "1", "0")
            writer.emit(f"barrier_arrive(context, {place}, {count}, {transactions}, {_end(writer)})")
        case _:
            parity = writer.read(instruction.operands[2], "i32")
            writer.write(instruction.operands[0], "bool", f"barrier_test(context, {place}, {parity}, {_end(writer)})")


def _tensor_map(writer: BlockWriter, instruction: Instruction) -> None:
    if instruction.has("replace"):
        address, *ordinal, value = instruction.operands
        base, offset = address_of(writer, address, "shared")
        number = _number(ordinal[0]) if ordinal else 0
        new = writer.read(value, "i64" if instruction.has("b64") else "i32")
        field = instruction.opcode[3]
        writer.emit(f"tensormap_replace(context, {field!r}, {base}, {offset}, {number}, {new}, {_end(writer)})")
        return
    target, source = instruction.operands[:2]
    into, of = address_of(writer, target, "global"), address_of(writer, source, "shared")
    writer.emit(f"tensormap_publish(context, {into[0]}, {into[1]}, {of[0]}, {of[1]}, {_end(writer)})")


def _fence(writer: BlockWriter, _instruction: Instruction) -> None:
    """Accesses are in order. Observers receive the fence."""
    writer.emit(f"fence(context, {_end(writer)})")


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "cp": _copy,
    "mbarrier": _barrier,
    "tensormap": _tensor_map,
    "fence": _fence,
    "membar": _fence,
}
"""Opcode -> the function that emits its statements."""
