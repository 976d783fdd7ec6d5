"""Basic blocks of a kernel, the registers that are live between them, and which blocks wait for other threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.assembly.opcodes import read, written
from bringup.compile.ptx.assembly.operands import Target


@dataclass(slots=True)
class BasicBlock:
    """Instructions `start` to `end`, which run one after the other. `following` are the successors.

    `spins`: a loop of one block that waits for another thread, so that other threads must run.
    """

    start: int
    end: int
    following: list[int] = field(default_factory=list[int])
    live_in: set[int] = field(default_factory=set[int])
    live_out: set[int] = field(default_factory=set[int])
    spins: bool = False


def writes(instruction: Instruction) -> set[int]:
    """The registers that an instruction writes."""
    return set(written(instruction.slots, instruction.operands))


def reads(instruction: Instruction) -> set[int]:
    """The registers that an instruction reads.

    A predicated instruction also reads what it writes, because inactive lanes keep the old value.
    """
    found = set(read(instruction.slots, instruction.operands))
    if instruction.predicate is not None:
        found |= {instruction.predicate.number} | writes(instruction)
    return found


def ends_block(instruction: Instruction) -> bool:
    """Whether other lanes may run between an instruction and the next: at branches, returns and barriers."""
    return instruction.base in ("bra", "ret", "exit") or waits_at_barrier(instruction)


def waits_at_barrier(instruction: Instruction) -> bool:
    """Whether it waits for other warps of the block.

    The lanes of a warp run in lockstep, so `bar.warp.sync` does not wait.
    """
    return instruction.base in ("bar", "barrier") and not instruction.has("warp")


def target_of(instruction: Instruction) -> int:
    """The index of the instruction that a branch jumps to."""
    target = instruction.operands[-1]
    assert isinstance(target, Target)
    return target.index


def basic_blocks(kernel: Kernel) -> list[BasicBlock]:
    """The basic blocks in text order, with successors, live registers and `spins`."""
    instructions = kernel.instructions
    starts = {0}
    for position, instruction in enumerate(instructions):
        if ends_block(instruction):
            starts.add(position + 1)
        if instruction.base == "bra":
            starts.add(target_of(instruction))
    bounds = sorted(start for start in starts if start < len(instructions))
    blocks = [BasicBlock(start, end) for start, end in zip(bounds, [*bounds[1:], len(instructions)], strict=True)]
    numbers = {block.start: number for number, block in enumerate(blocks)}
    for number, block in enumerate(blocks):
        block.following = _following(instructions[block.end - 1], number, numbers, len(blocks))
        inside = instructions[block.start : block.end]
        block.spins = number in block.following and any(_polls(each) for each in inside)
    _liveness(blocks, instructions)
    return blocks


def _following(last: Instruction, number: int, numbers: dict[int, int], count: int) -> list[int]:
    after = [number + 1] if number + 1 < count else []
    if last.base == "bra":
        taken = numbers.get(target_of(last))
        return ([] if taken is None else [taken]) + (after if last.predicate else [])
    if last.base in ("ret", "exit"):
        return after if last.predicate else []
    return after


def _polls(instruction: Instruction) -> bool:
    """Whether an instruction reads memory that another thread may change."""
    if instruction.base == "mbarrier":
        return instruction.has("try_wait") or instruction.has("test_wait")
    ordered = any(instruction.has(order) for order in ("acquire", "relaxed", "volatile"))
    return instruction.base == "atom" or (instruction.base == "ld" and ordered)


def _liveness(blocks: list[BasicBlock], instructions: list[Instruction]) -> None:
    """Computes live registers by backward data flow, up to the fixed point."""
    used: list[set[int]] = []
    defined: list[set[int]] = []
    for block in blocks:
        needs: set[int] = set()
        sets: set[int] = set()
        for instruction in instructions[block.start : block.end]:
            needs |= reads(instruction) - sets
            sets |= writes(instruction)
        used.append(needs)
        defined.append(sets)
    changed = True
    while changed:
        changed = False
        for number in range(len(blocks) - 1, -1, -1):
            block = blocks[number]
            leaving: set[int] = set()
            for other in block.following:
                leaving |= blocks[other].live_in
            entering = used[number] | (leaving - defined[number])
            if leaving != block.live_out or entering != block.live_in:
                block.live_out, block.live_in, changed = leaving, entering, True
