"""Variables of the state spaces .shared, .global, .const and .local (PTX ISA, "State Spaces", "Variables")."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bringup.compile.ptx.assembly.kernel import BITS, Variable

_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak)\s+)?\.(?P<space>shared|global|const|local)\s*(?:\.align\s+(?P<align>\d+)\s*)?"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$]+)\s*(?P<array>\[\s*(?P<count>\d*)\s*\])?\s*(?:=\s*(?P<values>.+))?",
    re.DOTALL,
)
_DYNAMIC_ALIGN = 128


def split_commas(text: str) -> list[str]:
    """The parts of a list, split at commas outside of brackets."""
    parts: list[str] = []
    depth, start = 0, 0
    for place, letter in enumerate(text):
        if letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _up(offset: int, align: int) -> int:
    return -(-offset // align) * align


@dataclass(slots=True)
class Variables:
    """The variables of a module and of a kernel's body. Dynamic shared memory follows all static variables."""

    shared: dict[str, Variable] = field(default_factory=dict[str, Variable])
    tables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    local: dict[str, Variable] = field(default_factory=dict[str, Variable])
    shared_bytes: int = 0
    local_bytes: int = 0
    dynamic: str = ""

    @property
    def dynamic_offset(self) -> int:
        """The offset of dynamic shared memory, in bytes."""
        return _up(self.shared_bytes, _DYNAMIC_ALIGN) if self.dynamic else self.shared_bytes

    def add(self, statement: str) -> bool:
        """Adds the variable that a directive declares. Returns whether it declares one."""
        found = _VARIABLE.fullmatch(statement.strip())
        if found is None or found["type"] not in BITS:
            return False
        element = BITS[found["type"]] // 8
        size = element * (int(found["count"] or 0) if found["array"] else 1)
        align = int(found["align"] or element)
        name = found["name"]
        match found["space"]:
            case "shared" if size == 0:
                self.dynamic = name
            case "shared":
                self.shared[name] = Variable(name, _up(self.shared_bytes, align), size)
                self.shared_bytes = self.shared[name].offset + size
            case "local":
                self.local[name] = Variable(name, _up(self.local_bytes, align), size)
                self.local_bytes = self.local[name].offset + size
            case _:
                self.tables[name] = Variable(name, 0, size, _bytes(found["values"], element).ljust(size, b"\0"))
        if self.dynamic:
            self.shared[self.dynamic] = Variable(self.dynamic, self.dynamic_offset, 0)
        return True

    def __contains__(self, name: str) -> bool:
        return name in self.shared or name in self.tables or name in self.local


def _bytes(values: str | None, element: int) -> bytes:
    """The initial bytes of a table: `{1, 2}` or one constant."""
    if values is None:
        return b""
    limit = 1 << 8 * element
    numbers = [int(part, 0) % limit for part in split_commas(values.strip().strip("{}"))]
    return b"".join(number.to_bytes(element, "little") for number in numbers)
