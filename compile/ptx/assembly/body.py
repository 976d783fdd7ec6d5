"""The body of a kernel: statements, scopes in braces with their own registers and labels, operands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from bringup.compile.ptx.assembly.errors import Malformed, Unsupported
from bringup.compile.ptx.assembly.kernel import BITS, Instruction, Kernel
from bringup.compile.ptx.assembly.opcodes import forms, reason, slots_of
from bringup.compile.ptx.assembly.operands import (
    Address,
    Blank,
    Immediate,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Target,
    Vector,
)
from bringup.compile.ptx.assembly.variables import Variables, split_commas

_STOP = re.compile(r"[;{}:]")
_LABEL = re.compile(r"[\w$%.]+")
_REGISTERS = re.compile(r"\.reg\s*\.(?P<type>\w+)\s+(?P<names>.+)", re.DOTALL)
_RANGE = re.compile(r"(?P<stem>[%\w$]+)<(?P<count>\d+)>")
_OPCODE = re.compile(r"[a-z][\w.:]*")
_OFFSET = re.compile(r"(?P<base>.+?)\s*\+\s*(?P<offset>-?\w+)")
_NUMBER = re.compile(r"[-+]?\d")
_KINDS = {1: "pred", 8: "16", 16: "16", 32: "32", 64: "64"}


@dataclass(slots=True)
class _Scope:
    registers: dict[str, int] = field(default_factory=dict[str, int])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    opened: int = 0


def statements(text: str) -> Iterator[tuple[str, int]]:
    """Statements, scope braces and labels (with their colon), each with the position of its begin."""
    start = 0
    for found in _STOP.finditer(text):
        place, stop = found.start(), found[0]
        head = text[start:place].strip()
        begin = place - len(text[start:place].lstrip()) if head else place
        if stop in "{}" and not head:
            yield stop, begin
        elif stop == ";":
            yield head, begin
        elif stop == ":" and _LABEL.fullmatch(head) and ":" not in (text[place + 1 : place + 2], text[place - 1]):
            yield f"{head}:", begin
        else:
            continue
        start = place + 1
    if text[start:].strip():
        raise Malformed(f"a statement has no end: {text[start:].strip()[:40]}", text.count("\n", 0, start))


class Body:
    """Reads statements into a kernel."""

    def __init__(self, kernel: Kernel, variables: Variables) -> None:
        self.kernel, self.variables = kernel, variables
        self.scopes = [_Scope()]
        self.branches: list[tuple[Instruction, tuple[_Scope, ...]]] = []
        self.file, self.source_line, self.line = 0, 0, 0

    def read(self, text: str, first_line: int) -> None:
        """All statements of a body whose text begins on a line of the PTX."""
        newlines = [place for place, letter in enumerate(text) if letter == "\n"]
        for statement, begin in statements(text):
            self.line = first_line + bisect_right(newlines, begin)
            self._statement(statement)
        if len(self.scopes) != 1:
            raise Malformed("this brace is not closed", self.scopes[-1].opened)
        for instruction, scopes in self.branches:
            self._resolve(instruction, scopes)

    def _statement(self, statement: str) -> None:
        if statement == "{":
            self.scopes.append(_Scope(opened=self.line))
        elif statement == "}":
            if len(self.scopes) == 1:
                raise Malformed("this brace closes nothing", self.line)
            self.scopes.pop()
        elif statement.endswith(":"):
            name = statement[:-1]
            if name in self.scopes[-1].labels:
                raise Malformed(f"label {name} is there twice", self.line)
            self.scopes[-1].labels[name] = len(self.kernel.instructions)
        elif statement.startswith("."):
            self._directive(statement)
        elif statement:
            self._instruction(statement)

    def _directive(self, statement: str) -> None:
        word = statement.split(None, 1)[0]
        if word == ".loc":
            _, file, line = statement.split()
            self.file = int(file)
            self.source_line = int(line) or self.source_line  # 0: the compiler added it
        elif word == ".reg":
            self._registers(statement)
        elif word != ".pragma" and not self.variables.add(statement):
            raise Unsupported(" ".join(statement.split()), self.line, reason="this directive")

    def _registers(self, statement: str) -> None:
        found = _REGISTERS.fullmatch(statement)
        width = {**BITS, "pred": 1}.get(found["type"]) if found else None
        if found is None or width not in _KINDS:
            raise Unsupported(statement, self.line, reason="registers of this type")
        for name in split_commas(found["names"]):
            several = _RANGE.fullmatch(name)
            names = [f"{several['stem']}{n}" for n in range(int(several["count"]))] if several else [name]
            for each in names:
                self.scopes[-1].registers[each] = len(self.kernel.registers)
                self.kernel.registers.append((each, _KINDS[width]))

    def _instruction(self, statement: str) -> None:
        text, rest, predicate = " ".join(statement.split()), statement, None
        if statement.startswith("@"):
            guard, _, rest = statement[1:].replace("\t", " ").partition(" ")
            number = self._register(guard.lstrip("!"))
            if number is None:
                raise Malformed(f"predicate {guard} is not declared", self.line)
            predicate, rest = Register(number, guard.startswith("!")), rest.strip()
        found = _OPCODE.match(rest)
        if found is None:
            raise Malformed(f"this is no instruction: {text}", self.line)
        opcode = tuple(found[0].split("."))
        if opcode[0] not in forms():
            source = self.kernel.where_is(self.file, self.source_line)
            raise Unsupported(text, self.line, source=source, reason=reason(opcode))
        operands = tuple(self._operand(part) for part in split_commas(rest[found.end() :]))
        instruction = Instruction(
            opcode=opcode,
            operands=operands,
            predicate=predicate,
            file=self.file,
            line=self.source_line,
            ptx_line=self.line,
            text=text,
            index=len(self.kernel.instructions),
        )
        slots = slots_of(opcode, operands)
        if slots is None:
            source = self.kernel.where_is(self.file, self.source_line)
            raise Unsupported(text, self.line, source=source, reason=reason(opcode))
        instruction.slots = slots
        self.kernel.instructions.append(instruction)
        if instruction.base == "bra":
            self.branches.append((instruction, tuple(self.scopes)))

    def _register(self, name: str) -> int | None:
        for scope in reversed(self.scopes):
            if name in scope.registers:
                return scope.registers[name]
        return None

    def _operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(self._operand(part) for part in split_commas(text[1 : text.rindex("}")])))
        if text.startswith("["):
            return self._address(text)
        if text == "_":
            return Blank()
        if text.startswith("!"):
            number = self._register(text[1:].strip())
            if number is None:
                raise Malformed(f"predicate {text} is not declared", self.line)
            return Register(number, negated=True)
        if "|" in text:
            first, second = (self._operand(part.strip()) for part in text.split("|", 1))
            return Pair(first, second)
        number = self._register(text)
        if number is not None:
            return Register(number)
        return self._name(text)

    def _name(self, text: str) -> Operand:
        if text.startswith("%"):
            if re.fullmatch(r"%[a-z]+\d+", text) and not text.startswith(("%clock", "%envreg", "%pm")):
                raise Malformed(f"register {text} is not declared", self.line)
            return Special(text[1:])
        if _NUMBER.match(text):
            return Immediate(text)
        if not re.fullmatch(r"[A-Za-z_$][\w$]*", text):
            raise Malformed(f"this is no operand: {text or 'nothing'}", self.line)
        return Symbol(text)

    def _address(self, text: str) -> Address:
        base, *rest = split_commas(text[1 : text.rindex("]")]) or [""]
        offset = _OFFSET.fullmatch(base)
        inner = self._operand((offset["base"] if offset else base).strip())
        if isinstance(inner, Symbol) and inner.name not in self.variables and inner.name not in self.kernel.parameters:
            raise Malformed(f"{inner.name} is not declared", self.line)
        distance = Immediate(offset["offset"]).integer if offset else 0
        return Address(inner, distance, tuple(self._operand(part) for part in rest))

    def _resolve(self, instruction: Instruction, scopes: tuple[_Scope, ...]) -> None:
        """A branch goes to the innermost label of that name: labels of inline assembly repeat."""
        label = instruction.operands[-1]
        assert isinstance(label, Symbol)
        for scope in reversed(scopes):
            if label.name in scope.labels:
                instruction.operands = (Target(scope.labels[label.name]),)
                return
        raise Malformed(f"label {label.name} is nowhere", instruction.ptx_line)
