"""Checkpoints of numpy: an `.npz` archive, one `.npy` file, or a folder of them, named after the tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from bringup.adapters.checkpoints.files import opened
from bringup.adapters.checkpoints.numpy_files.npy_header import (
    MAX_HEADER,
    PREFIX,
    bad,
    header_nbytes,
    located,
    parse_header,
)
from bringup.adapters.checkpoints.stored import Stored
from bringup.adapters.checkpoints.zip_container import STORED, read_member, read_zip
from bringup.spec import TensorInfo

END = ".npy"
_HEAD = PREFIX + MAX_HEADER
_FIRST = 1 << 10  # bytes; numpy's headers of tensors have 128
_PICKLES = "save it with `numpy.savez(FILE, **weights)`, where weights is a dict of arrays by name"


class Arrays(NamedTuple):
    """The tensors, and the storage of those that are not plain, by name."""

    headers: dict[str, TensorInfo]
    stored: dict[str, Stored]


def read_npz(path: Path) -> Arrays:
    """The arrays of an archive. Raises BU209, BU210."""
    found = Arrays({}, {})
    for member in read_zip(path).values():
        name = member.name.removesuffix(END)
        if name == member.name:
            raise bad(path, name, f"is no {END} file", _PICKLES)
        head = read_member(path, member, _FIRST)
        if header_nbytes(head) > len(head):
            head = read_member(path, member, _HEAD)
        packed = -1 if member.method == STORED else member.packed
        header = parse_header(path, name, head)
        _add(found, *located(path, name, header, member.offset, member.nbytes, packed))
    return found


def read_npy(path: Path) -> Arrays:
    """One array, named after its file. Raises BU210, BU233."""
    found = Arrays({}, {})
    with opened(path) as file:
        head, size = file.read(_HEAD), file.seek(0, os.SEEK_END)
    name = path.name.removesuffix(END)
    _add(found, *located(path, name, parse_header(path, name, head), 0, size))
    return found


def read_npy_folder(folder: Path, names: list[str]) -> Arrays:
    """The arrays of the `.npy` files of a folder. Raises BU210, BU233."""
    found = Arrays({}, {})
    for name in names:
        headers, stored = read_npy(folder / name)
        found.headers.update(headers)
        found.stored.update(stored)
    return found


def _add(found: Arrays, info: TensorInfo, stored: Stored | None) -> None:
    found.headers[info.name] = info
    if stored:
        found.stored[info.name] = stored
