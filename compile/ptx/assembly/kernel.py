"""A parsed kernel: its instructions, registers, parameters and variables."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.compile.ptx.assembly.operands import Operand, Register

BITS = {
    **dict.fromkeys(("b8", "u8", "s8"), 8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "u16x2", "s16x2"), 32),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 64),
    "b128": 128,
}
"""Bytes of each fundamental and packed type (PTX ISA, "Fundamental Types")."""


@dataclass(slots=True)
class Instruction:
    """One instruction. `opcode` is split at its dots; `index` is its position in the kernel.

    `slots` has the role of each operand, from the table of opcodes (`assembly/opcodes.py`). `line` is the line of the
    kernel's source, of the file with number `file`; `ptx_line` is the line in the PTX. Both count from 1.
    """

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Register | None
    file: int
    line: int
    ptx_line: int
    text: str
    index: int = 0
    slots: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode[0]

    def has(self, modifier: str) -> bool:
        return modifier in self.opcode

    @property
    def types(self) -> list[str]:
        """The types among the modifiers, in order."""
        return [part for part in self.opcode[1:] if part in BITS or part == "pred"]

    @property
    def type(self) -> str:
        """The last type among the modifiers."""
        return self.types[-1]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the kernel: `size` bytes at `offset` of the parameter block."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable at `offset` of its state space. `data` is set for tables of the module."""

    name: str
    offset: int
    size: int
    data: bytes = b""


@dataclass(slots=True)
class Kernel:
    """A kernel entry.

    `registers` have a kind each: `pred`, `16`, `32`, `64`. `threads` is the number of threads per block (`.reqntid`).
    `dynamic_offset` is where dynamic shared memory starts, after the static variables.
    """

    name: str
    target: str
    parameters: dict[str, Parameter]
    threads: int
    files: dict[int, str]
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    registers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    shared: dict[str, Variable] = field(default_factory=dict[str, Variable])
    tables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    local: dict[str, Variable] = field(default_factory=dict[str, Variable])
    dynamic_offset: int = 0
    local_bytes: int = 0

    @property
    def parameter_bytes(self) -> int:
        """The size of the parameter block in bytes."""
        return max((each.offset + each.size for each in self.parameters.values()), default=0)

    def where_is(self, file: int, line: int) -> str:
        """A line of a file of the kernel's source, as `file.py:12`; empty if the PTX does not name the file."""
        return f"{self.files[file]}:{line}" if file in self.files else ""

    def where(self, instruction: Instruction) -> str:
        """The line of the kernel's source: `file.py:12`, or the line of the PTX if that is unknown."""
        return self.where_is(instruction.file, instruction.line) or f"PTX line {instruction.ptx_line}"
