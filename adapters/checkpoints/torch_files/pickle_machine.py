"""An interpreter for the pickles of state dicts that builds data and calls none of their functions.

Opcodes: `pickletools.opcodes` of Python, protocols 2 to 5. A global is a name; names outside the caller's list are
rejected, and a listed name is built by a function of bringup from plain data. Nothing is imported, no attribute is set
and no object of another class is created. Opcodes that state dicts do not need are rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from bringup.adapters.checkpoints.torch_files.pickle_bytes import MAX_DIGITS, PickleBytes, PickleError
from bringup.shown import short

MAX_OPCODES = 1_000_000  # in one file: 20,000 tensors; larger models have several files
MAX_MARKS = 500  # nested lists, dicts and tuples

Builder = Callable[..., Any]  # raises PickleError for arguments that torch does not write


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle refers to, MODULE.NAME, and its builder; None if it is only an argument."""

    name: str
    build: Builder | None


class _Mark:
    """The start of a list, dict or tuple on the stack."""


MARK = _Mark()


def unpickle(
    data: Any, start: int, names: Mapping[str, Builder | None], storage: Callable[[Any], Any]
) -> tuple[Any, int]:
    """The object that a pickle describes, and its end. `data` supports slices of bytes, as bytes and mmap do.

    `names` are the allowed globals; `storage` returns the object of a persistent id. Raises PickleError.
    """
    machine = _Machine(data, start, names, storage)
    try:
        return machine.run(), machine.at
    except (IndexError, struct.error):
        raise PickleError("it ends early, or pops more from the stack than it pushed") from None


class _Machine(PickleBytes):
    def __init__(
        self, data: Any, start: int, names: Mapping[str, Builder | None], storage: Callable[[Any], Any]
    ) -> None:
        super().__init__(data, start)
        self.names, self.storage = names, storage
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks = 0
        self.known: dict[str, Global] = {}

    def run(self) -> Any:
        data, table, end = self.data, _OPCODES, len(self.data)
        for _ in range(MAX_OPCODES):
            if self.at >= end:
                raise PickleError("it ends early")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1:
                    raise PickleError("it ends with other than one object")
                return self.stack.pop()
            act = table.get(code)
            if act is None:
                raise PickleError(f"opcode 0x{code:02x} at byte {self.at - 1} is one that no state dict needs")
            act(self)
        raise PickleError(f"it has more than {MAX_OPCODES:,} opcodes")

    # --- stack

    def pop(self) -> Any:
        top = self.stack.pop()
        if top is MARK:
            raise PickleError("it pops from an empty stack")
        return top

    def top(self) -> Any:
        if self.stack[-1] is MARK:
            raise PickleError("it pops from an empty stack")
        return self.stack[-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.marks += 1
        if self.marks > MAX_MARKS:
            raise PickleError(f"more than {MAX_MARKS} lists, dicts and tuples are open at once")
        self.stack.append(MARK)

    def to_mark(self) -> list[Any]:
        if not self.marks:
            raise PickleError("it closes what was not opened")
        self.marks -= 1
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def new_tuple(self, items: list[Any]) -> None:
        self.charge(110 + 8 * len(items))
        self.push(tuple(items))

    def last(self, count: int) -> None:
        items = self.stack[-count:]
        if len(items) < count or any(item is MARK for item in items):
            raise PickleError("it pops from an empty stack")
        del self.stack[-count:]
        self.new_tuple(items)

    def new_dict(self, items: list[Any]) -> None:
        self.charge(110)
        self.push({})
        self.set_items(items)

    def new_list(self, items: list[Any]) -> None:
        self.charge(110)
        self.push([])
        self.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise PickleError("it sets items of an object that is not a dict")
        self.charge(52 * len(items))
        for at in range(0, len(items), 2):
            if type(items[at]) not in (str, int, bool):
                raise PickleError("a key of a dict is neither a string nor a number")
            target[items[at]] = items[at + 1]

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise PickleError("it appends to an object that is not a list")
        self.charge(9 * len(items))
        cast("list[Any]", target).extend(items)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def put(self, at: int) -> None:
        self.charge(100)
        self.memo[at] = self.top()

    def get(self, at: int) -> None:
        if at not in self.memo:
            raise PickleError(f"it refers to object {at}, which it did not store")
        self.stack.append(self.memo[at])

    # --- names

    def refer(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleError("the name of a global is not a string")
        full = f"{module}.{name}"
        found = self.known.get(full)
        if found is None:
            if full not in self.names:
                raise PickleError(f"it refers to `{short(full)}`", short(full))
            found = self.known[full] = Global(full, self.names[full])
        self.push(found)

    def stack_refer(self) -> None:
        name, module = self.pop(), self.pop()
        self.refer(module, name)

    def reduce(self) -> None:
        given, called = self.pop(), self.pop()
        name = called.name if type(called) is Global else "an object that is not a function"
        build = called.build if type(called) is Global else None
        if build is None or type(given) is not tuple:
            raise PickleError(f"it calls `{name}`")
        arguments = cast("tuple[Any, ...]", given)
        self.charge(160 + sum(_copied_nbytes(argument) for argument in arguments))
        try:
            self.push(build(*arguments))
        except TypeError:  # too many or too few: builders check the types themselves
            raise PickleError(f"it calls `{name}` with {len(arguments)} arguments") from None

    def set_state(self) -> None:
        """BUILD sets attributes, such as a state dict's `_metadata`; no tensor is among them."""
        self.pop()
        self.top()

    def find_storage(self) -> None:
        self.charge(120)
        self.push(self.storage(self.pop()))

    # --- numbers

    def whole(self) -> None:
        """INT: the texts 00 and 01 are False and True."""
        head = bytes(self.data[self.at : self.at + 3])
        if head in (b"00\n", b"01\n"):
            self.at += 3
            return self.push(head == b"01\n")
        return self.push(self.bounded(self.digits()))

    def long(self, form: str) -> None:
        length = self.number(form)
        if not 0 <= length <= MAX_DIGITS:
            raise PickleError(f"an integer at byte {self.at} has {length:,} bytes; the limit is {MAX_DIGITS}")
        self.push(int.from_bytes(self.take(length), "little", signed=True))


def _copied_nbytes(argument: Any) -> int:
    """The most memory that a builder needs to copy an argument: a list may become the items of a dict."""
    if isinstance(argument, list | tuple):
        return (120 if isinstance(argument, list) else 8) * len(cast("list[Any]", argument))
    return len(argument) if isinstance(argument, str | bytes) else 0


def _latin(raw: bytes) -> str:
    """A `str` of Python 2, as `pickle.load(…, encoding="latin1")` reads it."""
    return raw.decode("latin-1")


Act = Callable[[_Machine], Any]
# The opcodes by byte, in the order of pickletools: strings and bytes, numbers, containers, memo, objects.
_OPCODES: dict[int, Act] = {
    0x58: lambda m: m.push(m.decoded(m.sized("<I"))),  # BINUNICODE
    0x8C: lambda m: m.push(m.decoded(m.sized("<B"))),  # SHORT_BINUNICODE
    0x8D: lambda m: m.push(m.decoded(m.sized("<Q"))),  # BINUNICODE8
    0x54: lambda m: m.push(_latin(m.sized("<i"))),  # BINSTRING
    0x55: lambda m: m.push(_latin(m.sized("<B"))),  # SHORT_BINSTRING
    0x42: lambda m: m.push(m.sized("<I")),  # BINBYTES
    0x43: lambda m: m.push(m.sized("<B")),  # SHORT_BINBYTES
    0x8E: lambda m: m.push(m.sized("<Q")),  # BINBYTES8
    0x4E: lambda m: m.push(None),  # NONE
    0x88: lambda m: m.push(True),  # NEWTRUE
    0x89: lambda m: m.push(False),  # NEWFALSE
    0x4A: lambda m: m.push(m.number("<i")),  # BININT
    0x4B: lambda m: m.push(m.number("<B")),  # BININT1
    0x4D: lambda m: m.push(m.number("<H")),  # BININT2
    0x49: _Machine.whole,  # INT
    0x4C: lambda m: m.push(m.bounded(m.digits())),  # LONG
    0x8A: lambda m: m.long("<B"),  # LONG1
    0x8B: lambda m: m.long("<i"),  # LONG4
    0x47: lambda m: m.push(m.number(">d")),  # BINFLOAT
    0x28: _Machine.mark,  # MARK
    0x29: lambda m: m.push(()),  # EMPTY_TUPLE
    0x74: lambda m: m.new_tuple(m.to_mark()),  # TUPLE
    0x85: lambda m: m.last(1),  # TUPLE1
    0x86: lambda m: m.last(2),  # TUPLE2
    0x87: lambda m: m.last(3),  # TUPLE3
    0x5D: lambda m: m.new_list([]),  # EMPTY_LIST
    0x6C: lambda m: m.new_list(m.to_mark()),  # LIST
    0x61: lambda m: m.extend([m.pop()]),  # APPEND
    0x65: lambda m: m.extend(m.to_mark()),  # APPENDS
    0x7D: lambda m: m.new_dict([]),  # EMPTY_DICT
    0x64: lambda m: m.new_dict(m.to_mark()),  # DICT
    0x73: _Machine.set_item,  # SETITEM
    0x75: lambda m: m.set_items(m.to_mark()),  # SETITEMS
    0x71: lambda m: m.put(m.number("<B")),  # BINPUT
    0x72: lambda m: m.put(m.number("<I")),  # LONG_BINPUT
    0x70: lambda m: m.put(m.bounded(m.digits())),  # PUT
    0x94: lambda m: m.put(len(m.memo)),  # MEMOIZE
    0x68: lambda m: m.get(m.number("<B")),  # BINGET
    0x6A: lambda m: m.get(m.number("<I")),  # LONG_BINGET
    0x67: lambda m: m.get(m.bounded(m.digits())),  # GET
    0x30: lambda m: m.pop(),  # POP
    0x31: lambda m: m.to_mark(),  # POP_MARK
    0x32: lambda m: m.push(m.top()),  # DUP
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    0x63: lambda m: m.refer(m.line(), m.line()),  # GLOBAL
    0x93: _Machine.stack_refer,  # STACK_GLOBAL
    0x52: _Machine.reduce,  # REDUCE
    0x81: _Machine.reduce,  # NEWOBJ
    0x62: _Machine.set_state,  # BUILD
    0x51: _Machine.find_storage,  # BINPERSID
}
