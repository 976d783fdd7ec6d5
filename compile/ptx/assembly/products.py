"""Finds reads of a wgmma's registers before it was waited for (PTX ISA, `wgmma.wait_group`).

The emulator computes a product when it is issued, so running a kernel does not show this error. It is found by data
flow: for each path, the registers that a pending product writes, and how many groups were committed after that product.
"""

from __future__ import annotations

from collections.abc import Iterator

from bringup.compile.ptx.assembly.flow import BasicBlock, reads, writes
from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.assembly.operands import Immediate

_OPEN = -1  # issued, not committed yet
_OLDEST = 8  # more than a wait leaves pending
State = dict[int, int]  # register -> groups committed after the group of its product


def early_reads(kernel: Kernel, blocks: list[BasicBlock]) -> tuple[str, ...]:
    """Each instruction that reads such a register on some path, with the line of the kernel's source."""
    if not any(each.base == "wgmma" for each in kernel.instructions):
        return ()
    entering = _entering(kernel, blocks)
    found: dict[int, str] = {}
    for block, state in zip(blocks, entering, strict=True):
        for instruction, registers in _through(kernel, block, dict(state)):
            if registers and instruction.index not in found:
                where = f"{kernel.where(instruction)}: {instruction.text[:120]}"
                found[instruction.index] = f"read of a register before its wgmma was waited for: {where}"
    return tuple(found.values())


def _entering(kernel: Kernel, blocks: list[BasicBlock]) -> list[State]:
    """The pending products at the start of each block. If paths differ, the youngest group counts."""
    states: list[State] = [{} for _ in blocks]
    work = list(range(len(blocks)))
    while work:
        number = work.pop(0)
        leaving = dict(states[number])
        for _ in _through(kernel, blocks[number], leaving):
            pass
        for after in blocks[number].following:
            both = dict(states[after])
            for register, age in leaving.items():
                both[register] = min(age, both.get(register, age))
            if both != states[after]:
                states[after] = both
                work.append(after)
    return states


def _through(kernel: Kernel, block: BasicBlock, state: State) -> Iterator[tuple[Instruction, set[int]]]:
    """Updates `state` in place for a block. Yields each instruction with the registers that it reads too early."""
    for instruction in kernel.instructions[block.start : block.end]:
        given = writes(instruction)
        if instruction.base != "wgmma":
            yield instruction, reads(instruction) & state.keys()
            for register in given:
                state.pop(register, None)
        elif instruction.has("mma_async"):
            yield instruction, (reads(instruction) - given) & state.keys()
            state.update(dict.fromkeys(given, _OPEN))
        elif instruction.opcode[1] == "commit_group":
            state.update({register: min(age + 1, _OLDEST) for register, age in state.items()})
        elif instruction.opcode[1] == "wait_group":
            left = instruction.operands[0]
            pending = left.integer if isinstance(left, Immediate) else 0
            for register in [register for register, age in state.items() if age >= pending]:
                del state[register]
