"""Reads the metadata of an hsaco: arguments, threads, registers and memory of its kernel.

An hsaco is a 64-bit ELF file, a code object of version 5. One of its notes has the metadata as MessagePack:
https://llvm.org/docs/AMDGPUUsage.html, "Code Object V5 Metadata" and "ELF Code Object".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import unpack_from
from typing import Any

from bringup.compile.kernels.message_pack import decoded

VERSION = 5  # of code objects; ELF's ABI version 3
_ABI_VERSION, _HSA, _AMDGPU = 3, 64, 224  # fields of the ELF header: version 5, the operating system, the machine
_NOTE, _METADATA = 4, 32  # the types of a program header of notes, and of the note with the metadata
_TARGET = re.compile(r".*-(gfx[0-9a-f]+)((?::[a-z]+[+-])*)")


@dataclass(frozen=True, slots=True)
class CodeArgument:
    """An argument of a kernel: its offset and size in the kernel's argument memory, in bytes, and its kind.

    `kind` is `global_buffer` for a pointer, `by_value` for a value, `hidden_…` for an argument that the runtime adds.
    """

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeKernel:
    """The kernel of an hsaco. `architecture`: `gfx942`. `features`: required settings of the device, such as `:xnack+`.

    `arguments` are those that a launch passes; `argument_bytes` includes the hidden ones. `wavefront`: its lanes, 32 or
    64. `threads`: maximum threads of a block. `shared`: static shared memory (LDS) of a block in bytes. `stack`:
    private memory of a thread in bytes. `registers`: vector registers of a thread. `spilled`: number of spilled
    registers.
    """

    name: str
    symbol: str
    architecture: str
    features: str
    arguments: tuple[CodeArgument, ...]
    argument_bytes: int
    wavefront: int
    threads: int
    shared: int
    stack: int
    registers: int
    spilled: int


def kernel_of(image: bytes) -> CodeKernel:
    """The kernel of an hsaco. Raises ValueError unless `image` is an hsaco of version 5 with exactly one kernel."""
    try:
        metadata = _metadata(image)
        (kernel,) = metadata["amdhsa.kernels"]
        return _read(kernel, metadata["amdhsa.target"])
    except (LookupError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"not an hsaco of one kernel: {type(error).__name__}: {error}") from error


def _read(kernel: Mapping[str, Any], target: str) -> CodeKernel:
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(f"the target of the hsaco is {target!r:.80}")
    arguments = (CodeArgument(each[".offset"], each[".size"], each[".value_kind"]) for each in kernel[".args"])
    return CodeKernel(
        name=kernel[".name"],
        symbol=kernel[".symbol"],
        architecture=found[1],
        features=found[2],
        arguments=tuple(each for each in arguments if not each.kind.startswith("hidden_")),
        argument_bytes=kernel[".kernarg_segment_size"],
        wavefront=kernel[".wavefront_size"],
        threads=kernel[".max_flat_workgroup_size"],
        shared=kernel[".group_segment_fixed_size"],
        stack=kernel[".private_segment_fixed_size"],
        registers=kernel[".vgpr_count"],
        spilled=kernel[".vgpr_spill_count"] + kernel[".sgpr_spill_count"],
    )


def _metadata(image: bytes) -> Mapping[str, Any]:
    if image[:5] != b"\x7fELF\x02" or image[7] != _HSA or unpack_from("<H", image, 18)[0] != _AMDGPU:
        raise ValueError("not an hsaco: its begin is not that of a 64-bit ELF file for AMD's GPUs")
    if image[8] != _ABI_VERSION:
        raise ValueError(f"the hsaco is no code object of version {VERSION}: its ABI version is {image[8]}")
    (table,) = unpack_from("<Q", image, 32)
    entry, count = unpack_from("<HH", image, 54)
    for index in range(count):
        kind, _, begin, _, _, size = unpack_from("<IIQQQQ", image, table + index * entry)
        if kind == _NOTE:
            for owner, number, content in _notes(image[begin : begin + size]):
                if (owner, number) == (b"AMDGPU\0", _METADATA) and isinstance(found := decoded(content), dict):
                    return found
    raise ValueError("the hsaco has no metadata")


def _notes(content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Owner, type and content of each note; owner and content are padded to 4 bytes."""
    position = 0
    while position + 12 <= len(content):
        owner, size, number = unpack_from("<III", content, position)
        begin = position + 12 + -(-owner // 4) * 4
        yield content[position + 12 : position + 12 + owner], number, content[begin : begin + size]
        position = begin + -(-size // 4) * 4
