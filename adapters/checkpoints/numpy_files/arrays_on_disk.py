"""Checkpoints of numpy: an `.npz` archive, one `.npy` file, or a folder of them, named after the tensors.

The loaders of vLLM and SGLang write such a folder with `--load-format npcache`: `np/weight_names.json` is the list of
the tensors, and `np/NAME` an `.npy` file without that suffix (`np_cache_weights_iterator` of weight_utils.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, cast

from bringup.adapters.checkpoints.bounded_json import MAX_TEXT, strict_value
from bringup.adapters.checkpoints.files import entries, opened, too_short
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
from bringup.diagnostics import BringupError, fail
from bringup.shown import short, shown
from bringup.spec import TensorInfo

END, LIST = ".npy", "weight_names.json"
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
    if why := too_short(path):
        raise bad(path, name, f"has no header of numpy: {why}")
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


def np_cache(path: Path) -> Path | None:
    """The weight_names.json that a path names: itself, in its folder, or in its folder `np`."""
    places = (path,) if path.name == LIST else (path / LIST, path / "np" / LIST)
    return next((place for place in places if place.is_file()), None)


def read_np_cache(names: Path) -> Arrays:
    """The arrays that a weight_names.json lists. Raises BU210 for an invalid list or array, BU233."""
    found = Arrays({}, {})
    for name in _listed(names):
        headers, stored = read_npy(names.parent / name)
        info = next(iter(headers.values()))._replace(name=name)
        _add(found, info, next(iter(stored.values()), None))
    return found


def _listed(names: Path) -> list[str]:
    """The tensors of a weight_names.json. Raises BU210 unless each is the name of a file next to it."""
    with opened(names) as file:
        text = file.read(MAX_TEXT + 1)
    try:
        listed = strict_value(text)
    except ValueError as error:
        raise _bad_list(names, str(error)) from None
    if not isinstance(listed, list):
        raise _bad_list(names, "it is not a list")
    there = set(entries(names.parent))
    for name in cast("list[object]", listed):
        if not isinstance(name, str) or Path(name).name != name or name in (".", ".."):
            raise _bad_list(names, f"{shown(name)} is not the name of a file")
        if name not in there:
            raise _bad_list(names, f"there is no file `{short(name)}`")
    return cast("list[str]", listed)


def _bad_list(names: Path, why: str) -> BringupError:
    help = "delete the folder, which is a cache, or write it again"
    return fail("BU210", f"`{names}` is not a list of tensors: {why}", help=help, file=str(names))


def _add(found: Arrays, info: TensorInfo, stored: Stored | None) -> None:
    found.headers[info.name] = info
    if stored:
        found.stored[info.name] = stored
