"""Operands of an instruction (PTX ISA, "Instruction Operands")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Register:
    """A register, by its number in the kernel. `negated` is `!p` of a predicate."""

    number: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant as written: `12`, `-0x1F`, `0f3F800000`, `0d3FF0000000000000`, `1.5`."""

    text: str

    @property
    def integer(self) -> int:
        """The value of an integer constant (PTX ISA, "Integer Constants")."""
        digits = self.text.rstrip("U")
        octal = len(digits.lstrip("-")) > 1 and digits.lstrip("-")[0] == "0" and digits.lstrip("-").isdigit()
        return int(digits, 8 if octal else 0)


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only register of the hardware, without its `%`: `tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a parameter, a variable or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """The index of the instruction that a branch jumps to."""

    index: int


@dataclass(frozen=True, slots=True)
class Blank:
    """`_`: a result that is discarded."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; `rest` are the other parts of `[tensor, {x, y}]`."""

    base: Operand
    offset: int = 0
    rest: tuple[Operand, ...] = ()


Operand = Register | Immediate | Special | Symbol | Target | Blank | Vector | Pair | Address


def registers_in(operand: Operand) -> Iterator[int]:
    """The numbers of the registers that an operand names."""
    match operand:
        case Register(number=number):
            yield number
        case Vector(items=items):
            for item in items:
                yield from registers_in(item)
        case Pair(first=first, second=second):
            yield from registers_in(first)
            yield from registers_in(second)
        case Address(base=base, rest=rest):
            yield from registers_in(base)
            for part in rest:
                yield from registers_in(part)
        case _:
            pass
