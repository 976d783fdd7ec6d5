"""The bytes of a pickle: strings and numbers, each within limits; and the error for an invalid one."""

from __future__ import annotations

import struct
from typing import Any

MAX_MEMORY = 48 << 20  # bytes of the objects
MAX_STRING = 1 << 20  # bytes of a string
MAX_LINE = 512  # bytes of a name or number in text form
MAX_DIGITS = 16  # bytes of an integer


class PickleError(ValueError):
    """A pickle that is not one of a state dict. `name` is a global that is not allowed."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.name = name


class PickleBytes:
    """A position in a pickle. `data` supports slices of bytes, as bytes and mmap do."""

    def __init__(self, data: Any, start: int) -> None:
        self.data = data
        self.at: int = start
        self.memory: int = MAX_MEMORY

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise PickleError("it ends early")
        self.at += count
        return found

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        head = self.data[self.at : self.at + MAX_LINE]
        end = head.find(b"\n")
        if end < 0:
            raise PickleError(f"a line at byte {self.at} does not end within {MAX_LINE} bytes")
        self.at += end + 1
        return self.decoded(head[:end])

    def decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise PickleError(f"a string before byte {self.at} is not UTF-8") from None

    def sized(self, form: str) -> bytes:
        length = self.number(form)
        if length > MAX_STRING or length < 0:
            raise PickleError(f"a string at byte {self.at} has {length:,} bytes; the limit is {MAX_STRING:,}")
        self.charge(60 + 4 * length)
        return self.take(length)

    def charge(self, nbytes: int) -> None:
        self.memory -= nbytes
        if self.memory < 0:
            raise PickleError(f"its objects take more than {MAX_MEMORY >> 20} MiB of memory")

    def digits(self) -> int:
        try:
            return int(self.line().removesuffix("L"))
        except ValueError:
            raise PickleError(f"a number before byte {self.at} cannot be read") from None

    def bounded(self, number: int) -> int:
        if number.bit_length() > 8 * MAX_DIGITS:
            raise PickleError(f"an integer before byte {self.at} has more than {MAX_DIGITS} bytes")
        return number
