"""Branches, returns, barriers and instructions without effect (PTX ISA, "Control Flow", "Parallel Synchronization")."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.ptx.assembly.flow import BasicBlock, target_of
from bringup.compile.ptx.assembly.kernel import Instruction
from bringup.compile.ptx.assembly.operands import Immediate
from bringup.compile.ptx.translate.outcomes import END
from bringup.compile.ptx.translate.writer import BlockWriter


def _nothing(_writer: BlockWriter, _instruction: Instruction) -> None:
    """No effect: time and register limits are not modelled, and lanes of a warp run in lockstep."""


def _depend(writer: BlockWriter, instruction: Instruction) -> None:
    """Launches run in order. Observers receive the wait."""
    if instruction.has("wait"):
        writer.emit(f"wait_for_launches(context, {writer.mask}, {writer.here})")


def _trap(writer: BlockWriter, _instruction: Instruction) -> None:
    writer.emit(f"trap(context, {writer.mask}, {writer.here})")


EMITTERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "trap": _trap,
    "griddepcontrol": _depend,
    **dict.fromkeys(("nanosleep", "setmaxnreg", "bar"), _nothing),
}
"""Opcode -> the function that emits its statements. `bar` here is bar.warp.sync."""


def ending(writer: BlockWriter, last: Instruction, after: int, blocks: list[BasicBlock]) -> str:
    """The return statement of a block, which states where its lanes are next.

    `after` is the block that follows in the text, or END.
    """
    match last.base:
        case "bra":
            starts = {block.start: number for number, block in enumerate(blocks)}
            taken = starts.get(target_of(last), END)
        case "ret" | "exit":
            taken = END
        case "bar" | "barrier" if not last.has("warp"):
            return _wait(writer, last, after)
        case _:
            return f"return {after}"
    if writer.predicate is None:
        return f"return {taken}"
    return f"return branch(context, mask, {writer.predicate}, {taken}, {after})"


def _wait(writer: BlockWriter, last: Instruction, after: int) -> str:
    identity, *count = (each.integer for each in last.operands if isinstance(each, Immediate))
    threads = count[0] if count else 0
    if not 0 <= identity < 16 or threads % 32:
        raise writer.unsupported("barriers are numbered 0 to 15, and their thread counts are multiples of 32")
    return f"return wait(mask, {writer.predicate}, {identity}, {threads}, {after}, {writer.here}, context)"
