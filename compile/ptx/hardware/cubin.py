"""Reads the properties of kernels from a cubin: parameters, required block size, registers, static shared memory.

A cubin is a 64-bit ELF file. Its sections `.nv.info.<kernel>` are lists of attributes (format byte, attribute byte,
16-bit value or length, bytes). There is no specification; the attribute numbers are those in the table EIATTR of
NVIDIA's cuobjdump, and in the readers of LLVM and tinygrad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import unpack, unpack_from

_PARAMETER, _BLOCK_SIZE, _PARAMETER_BYTES, _REGISTERS = 0x17, 0x10, 0x19, 0x2F
_SYMBOLS = 2  # type of a symbol table section (SHT_SYMTAB)
_LENGTH_FOLLOWS = 4  # format of an attribute whose bytes follow its length


@dataclass(slots=True)
class CubinKernel:
    """One kernel of a cubin.

    `parameters`: (offset, size) in bytes of each parameter, in order. `block`: the block size that the kernel requires;
    None if it accepts any. `registers` per thread, `shared` in bytes of static shared memory.
    """

    name: str
    parameters: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    parameter_bytes: int = 0
    block: tuple[int, int, int] | None = None
    registers: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    info: int


def kernels_of(image: bytes) -> dict[str, CubinKernel]:
    """The kernels of a cubin by name. Raises ValueError if `image` is not a cubin."""
    sections = _sections(image)
    found: dict[str, CubinKernel] = {}
    for section in sections:
        prefix, _, name = section.name[1:].partition(".")
        if prefix == "text" and name:
            found[name] = CubinKernel(name)
    for name, registers in _registers(image, sections):
        if name in found:
            found[name].registers = registers
    for section in sections:
        if section.name.startswith(".nv.shared.") and section.name[11:] in found:
            found[section.name[11:]].shared = section.size
        if section.name.startswith(".nv.info.") and section.name[9:] in found:
            _read_attributes(image[section.offset : section.offset + section.size], found[section.name[9:]])
    return found


def _sections(image: bytes) -> list[_Section]:
    if image[:4] != b"\x7fELF" or image[4:5] != b"\x02":
        raise ValueError("not a cubin: it does not begin as a 64-bit ELF file")
    (table,) = unpack_from("<Q", image, 40)
    entry, count, names = unpack_from("<HHH", image, 58)
    headers = [unpack_from("<IIQQQQII", image, table + index * entry) for index in range(count)]
    begin = int(headers[names][4])
    return [
        _Section(
            image[begin + name : image.index(b"\0", begin + name)].decode(),
            kind,
            offset,
            0 if kind == 8 and not size else size,
            info,
        )
        for name, kind, _, _, offset, size, _, info in headers
    ]


def _registers(image: bytes, sections: list[_Section]) -> Iterator[tuple[str, int]]:
    """(symbol, registers per thread), from the attributes of the file."""
    table = next(section for section in sections if section.kind == _SYMBOLS)
    names = next(section for section in sections if section.name == ".strtab")
    whole = next((section for section in sections if section.name == ".nv.info"), None)
    for attribute, data in _attributes(image[whole.offset : whole.offset + whole.size] if whole else b""):
        if attribute == _REGISTERS and isinstance(data, bytes):
            symbol, registers = unpack_from("<II", data)
            (name,) = unpack_from("<I", image, table.offset + 24 * symbol)
            begin = names.offset + name
            yield image[begin : image.index(b"\0", begin)].decode(), registers


def _attributes(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(attribute, its value or its bytes)."""
    position = 0
    while position + 4 <= len(content):
        form, attribute, value = unpack_from("<BBH", content, position)
        position += 4
        if form != _LENGTH_FOLLOWS:
            yield attribute, value
            continue
        yield attribute, content[position : position + value]
        position += value


def _read_attributes(content: bytes, kernel: CubinKernel) -> None:
    by_ordinal: dict[int, tuple[int, int]] = {}
    for attribute, data in _attributes(content):
        match attribute, data:
            case int(), int() if attribute == _PARAMETER_BYTES:
                kernel.parameter_bytes = data
            case int(), bytes() if attribute == _PARAMETER:
                _, ordinal, offset, flags = unpack("<IHHI", data)
                by_ordinal[ordinal] = (offset, flags >> 18)
            case int(), bytes() if attribute == _BLOCK_SIZE:
                x, y, z = unpack_from("<III", data)
                kernel.block = (x, y, z)
            case _:
                pass
    kernel.parameters = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal)]
