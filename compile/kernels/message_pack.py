"""A reader of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md).

It supports maps, lists, texts, integers, booleans and nil.
"""

from __future__ import annotations

from struct import calcsize, unpack_from

Value = dict[str, "Value"] | list["Value"] | str | int | bool | None
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS: dict[int, Value] = {0xC0: None, 0xC2: False, 0xC3: True}
DEEPEST = 16  # nesting depth of lists and maps; the metadata of a code object has four levels


def decoded(content: bytes) -> Value:
    """The single value in `content`. Raises ValueError for malformed content, floats, bytes and extensions."""
    reader = _Reader(content)
    value = reader.value(0)
    if reader.at != len(content):
        raise ValueError(f"{len(content) - reader.at} bytes follow the value")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def value(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and maps in each other")
        code = self._number(">B")
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code < 0x90 or code in _MAPS:
            count = code & 0xF if code < 0x90 else self._number(_MAPS[code])
            return dict(self._pair(depth) for _ in range(count))
        if code < 0xA0 or code in _LISTS:
            count = code & 0xF if code < 0xA0 else self._number(_LISTS[code])
            return [self.value(depth + 1) for _ in range(count)]
        if code < 0xC0 or code in _TEXTS:
            return self._text(code & 0x1F if code < 0xC0 else self._number(_TEXTS[code]))
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        raise ValueError(f"byte {code:#04x} at {self.at - 1} begins no text, integer, list or map")

    def _pair(self, depth: int) -> tuple[str, Value]:
        key = self.value(depth + 1)
        if not isinstance(key, str):
            raise ValueError(f"a key is {key!r:.40}, not a string")
        return key, self.value(depth + 1)

    def _text(self, nbytes: int) -> str:
        return self._taken(nbytes).decode()

    def _number(self, form: str) -> int:
        return int(unpack_from(form, self._taken(calcsize(form)))[0])

    def _taken(self, nbytes: int) -> bytes:
        found = self._content[self.at : self.at + nbytes]
        if len(found) != nbytes:
            raise ValueError(f"it ends within a value, at {len(self._content)}")
        self.at += nbytes
        return found
