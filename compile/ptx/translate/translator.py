"""Translates a kernel to Python functions of numpy statements, one for each basic block.

A function's arguments are the context, its registers and the active lanes (None: all). It returns where the lanes are
next. It computes all lanes. At its end the registers of inactive lanes are restored, and these access no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from bringup.compile.ptx.assembly.flow import BasicBlock, ends_block
from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.assembly.operands import Register
from bringup.compile.ptx.hardware import atomics, integers, matrix, packed, rounding, values, warp
from bringup.compile.ptx.hardware import copies as hardware_copies
from bringup.compile.ptx.hardware import memory as hardware_memory
from bringup.compile.ptx.hardware.context import Context, Mask
from bringup.compile.ptx.translate import (
    arithmetic,
    control,
    conversions,
    copies,
    logic,
    memory,
    outcomes,
    warps,
)
from bringup.compile.ptx.translate.constants import Constants, pattern
from bringup.compile.ptx.translate.forms import WIDTH, choose_forms
from bringup.compile.ptx.translate.outcomes import END, Outcome
from bringup.compile.ptx.translate.writer import BlockWriter

BlockFunction = Callable[[Context, list[Any], Mask], Outcome]

_EMITTERS = {
    **arithmetic.EMITTERS,
    **logic.EMITTERS,
    **conversions.EMITTERS,
    **memory.EMITTERS,
    **copies.EMITTERS,
    **warps.EMITTERS,
    **control.EMITTERS,
}
_LIBRARY: tuple[ModuleType, ...] = (
    warp,
    matrix,
    hardware_copies,
    hardware_memory,
    atomics,
    outcomes,
    packed,
    integers,
    rounding,
    values,
)


def translate(kernel: Kernel, blocks: list[BasicBlock]) -> list[BlockFunction]:
    """The function of each basic block. Raises Unsupported for an instruction that cannot be translated."""
    constants, canonical = Constants(), choose_forms(kernel)
    source = "".join(_block(kernel, blocks, number, canonical, constants) for number in range(len(blocks)))
    names: dict[str, Any] = {"np": np, "instructions": kernel.instructions}
    for module in _LIBRARY:
        names |= {name: value for name, value in vars(module).items() if not name.startswith("_")}
    names |= constants.values
    names |= {f"undefined_{form}": pattern(form, -1) for form in WIDTH}
    code: CodeType = compile(source, f"<ptx {kernel.name}>", "exec")
    exec(code, names)
    return [names[f"block_{number}"] for number in range(len(blocks))]


def _block(kernel: Kernel, blocks: list[BasicBlock], number: int, canonical: list[str], constants: Constants) -> str:
    """The source of one function."""
    block = blocks[number]
    writer = BlockWriter(kernel, canonical, constants)
    inside = kernel.instructions[block.start : block.end]
    for instruction in inside:
        writer.begin(instruction)
        if not ends_block(instruction):
            _emit(writer, instruction)
    after = number + 1 if number + 1 < len(blocks) else END
    end = control.ending(writer, inside[-1], after, blocks)
    leaving = {each: writer.read(Register(each), canonical[each]) for each in sorted(writer.changed & block.live_out)}
    lines = [f"def block_{number}(context, registers, mask):", *_inputs(writer, canonical), *writer.lines]
    if leaving:
        lines.append("    if mask is None:")
        lines += [f"        registers[{each}] = {value}" for each, value in leaving.items()]
        lines.append("    else:")
        lines += [
            f"        registers[{each}] = merged(mask, {value}, registers[{each}])" for each, value in leaving.items()
        ]
    return "\n".join([*lines, f"    {end}", ""])


def _inputs(writer: BlockWriter, canonical: list[str]) -> list[str]:
    """Statements that load the registers that a block reads before it sets them.

    A register that was never set has all bits set: NaN, -1, true.
    """
    lines: list[str] = []
    for each in sorted(writer.inputs):
        lines.append(f"    r{each} = registers[{each}]")
        lines.append(f"    if r{each} is None: r{each} = registers[{each}] = undefined_{canonical[each]}")
    return lines


def _emit(writer: BlockWriter, instruction: Instruction) -> None:
    if instruction.base not in _EMITTERS:
        raise writer.unsupported("the translator does not support it")
    _EMITTERS[instruction.base](writer, instruction)
